"""What became of every prompt that was read: counted one by one, not by subtraction."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from fleet.snapshot import Snapshot
from producer.console import Exit, err
from producer.freeze import iter_ids
from producer.progress import money

CHUNK = 10_000


@dataclass(frozen=True)
class Outcome:
    """Prompts by what became of them."""

    read: int
    done: int
    failed: int
    cancelled: int
    out_of_budget: int
    #: Neither: only when the run was left before its end.
    unfinished: int

    @property
    def whole(self) -> bool:
        """The run came to its end: every prompt has an outcome."""
        return self.unfinished == 0

    def sentence(self) -> str:
        total = self.done + self.failed + self.cancelled + self.out_of_budget + self.unfinished
        text = (
            f"{self.read:,} prompts read = {self.done:,} done + {self.failed:,} failed"
            f" + {self.cancelled:,} cancelled + {self.out_of_budget:,} out of budget"
        )
        if self.unfinished:
            text += f" + {self.unfinished:,} unfinished"
        return text if total == self.read else f"{text} (MISMATCH: {total:,})"


def conclude(config: RunConfig, ledger: Ledger, rows: dict[str, int]) -> Exit:
    """Say what became of the run."""
    outcome = count(config, ledger, rows)
    snapshot = ledger.snapshot()
    err.print(outcome.sentence(), highlight=False, soft_wrap=True)
    for sentence in _sums(config, snapshot):
        err.print(sentence, highlight=False, soft_wrap=True)
    if backlog := snapshot.backlog:
        err.print(f"{backlog:,} completions wait for the collector to write them.")
    if not outcome.whole:
        err.print("Not at its end. Start again to go on.")
        return Exit.INTERRUPTED
    if outcome.failed:
        text = f"{outcome.failed:,} prompts failed: see `producer failures {config.path}`."
        err.print(text, highlight=False, soft_wrap=True)
        return Exit.SOME_FAILED
    return Exit.OK


def _sums(config: RunConfig, snapshot: Snapshot) -> Iterator[str]:
    """What it came to, and what ended it if that was the money."""
    truncated = sum(d.truncated for d in snapshot.datasets)
    yield (
        f"{money(snapshot.spent_usd)} for {snapshot.tokens:,} completion tokens"
        f" ({truncated:,} answers cut off at max_tokens), in {config.directory}/completions"
    )
    if snapshot.cap_reached:
        left = max(0.0, snapshot.cap_usd - snapshot.spent_usd - snapshot.unconfirmed_most_usd)
        yield (
            f"The cap of {money(snapshot.cap_usd)} has {money(left)} left, less than one more"
            f" answer may cost ({config.sampling.max_tokens:,} tokens): raise run.cap_usd, or lower"
            " sampling.max_tokens, and start again"
        )


def count(config: RunConfig, ledger: Ledger, rows: dict[str, int]) -> Outcome:
    """Ask the ledger for every prompt_id in the frozen files."""
    snapshot = ledger.snapshot()
    state = {d.name: d for d in snapshot.datasets}
    totals: Counter[str] = Counter()
    for name, limit in rows.items():
        ids = itertools.islice(iter_ids(config.directory / "prompts" / f"{name}.parquet"), limit)
        found: Counter[str] = Counter()
        while chunk := list(itertools.islice(ids, CHUNK)):
            found.update(ledger.outcomes([prompt_id.hex() for prompt_id in chunk]))
        rest = found["live"] + found["open"]
        totals["read"] += limit
        totals["done"] += found["done"]
        totals["failed"] += found["failed"]
        if state[name].cancelled:
            totals["cancelled"] += rest
        elif state[name].ended or snapshot.cap_reached:
            totals["out_of_budget"] += rest
        else:
            totals["unfinished"] += rest
    fields = ("read", "done", "failed", "cancelled", "out_of_budget", "unfinished")
    return Outcome(*(totals[field] for field in fields))
