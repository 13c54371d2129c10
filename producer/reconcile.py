"""Holds what the ledger says was spent against what OpenRouter says was billed.

In: the ledger, the account, the Parquet files. Out: a `Reconciliation`, with each difference by
prompt. Three sums are held against each other: the ledger's, the files', and the growth of the
key's usage since the run began; and for a sample of the answers, each one's record.
"""

import csv
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from fleet.ledger import Ledger
from fleet.schemas import COMPLETIONS
from producer.account import Account
from producer.console import err, out

#: Requests for records at a time.
THREADS = 4
#: A record may come a little after its answer.
TRIES, TRY_AGAIN_S = 4, 0.5
#: Two sums in US dollars are the same within this share, and this much.
SHARE, LEAST_USD = 0.001, 1e-6
COLUMNS = [
    "prompt_id",
    "generation_id",
    "provider",
    "model",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
]
#: Of our rows → of OpenRouter's record.
RECORD = {
    "cost_usd": "total_cost",
    "prompt_tokens": "native_tokens_prompt",
    "completion_tokens": "native_tokens_completion",
    "provider": "provider_name",
    "model": "model",
}


@dataclass(frozen=True)
class Difference:
    """One field of one answer that OpenRouter has otherwise."""

    prompt_id: str
    generation_id: str
    field: str
    ours: Any
    theirs: Any


@dataclass(frozen=True)
class Reconciliation:
    """US dollars unless the name says otherwise."""

    ledger_usd: float
    #: Of requests whose answer never came: expected, and at most.
    unconfirmed_usd: float
    unconfirmed_most_usd: float
    #: Growth of the key's usage since the run began.
    billed_usd: float
    #: Sum over completions and rejects on disk.
    files_usd: float
    #: Completions that are not on disk yet.
    backlog: int
    sampled: int
    differences: list[Difference]

    def problems(self) -> list[str]:
        """What does not agree, in sentences; none when all does."""
        found = []
        tolerance = max(SHARE * self.ledger_usd, LEAST_USD)
        if self.billed_usd < self.ledger_usd - tolerance:
            less = self.ledger_usd - self.billed_usd
            found.append(
                f"OpenRouter billed {less:.6f} USD less than the ledger counted: its usage may lag"
                " by a minute; an answer without a cost counts at its price"
            )
        if self.billed_usd > self.ledger_usd + self.unconfirmed_most_usd + tolerance:
            more = self.billed_usd - self.ledger_usd
            found.append(
                f"OpenRouter billed {more:.6f} USD more than the ledger counted, and requests"
                " without an answer do not explain it: did something else use the key?"
            )
        if not self.backlog and abs(self.files_usd - self.ledger_usd) > tolerance:
            found.append(
                f"the files hold {self.files_usd:.6f} USD, the ledger {self.ledger_usd:.6f} USD"
            )
        if self.differences:
            prompts = len({d.prompt_id for d in self.differences})
            found.append(f"{prompts:,} of {self.sampled:,} sampled answers differ")
        return found


def compare(
    ledger: Ledger, account: Account, directory: Path, sample: int, seed: int = 0
) -> Reconciliation:
    """Ask the account; sample at most `sample` answers.

    Raises:
        AccountError: the account does not answer.
    """
    snapshot = ledger.snapshot()
    usage = account.balance().usage_usd
    completions = _table(directory / "completions")
    known = completions.filter(pc.is_valid(completions["generation_id"]))
    places = random.Random(seed).sample(range(known.num_rows), min(sample, known.num_rows))
    chosen = known.take(places).to_pylist()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda row: _differences(account, row), chosen))
    rejects = _table(directory / "rejects" / "completions")
    return Reconciliation(
        ledger_usd=snapshot.spent_usd,
        unconfirmed_usd=snapshot.unconfirmed_usd,
        unconfirmed_most_usd=snapshot.unconfirmed_most_usd,
        billed_usd=usage - ledger.usage_before(usage - snapshot.spent_usd),
        files_usd=sum(pc.sum(table["cost_usd"]).as_py() or 0.0 for table in (completions, rejects)),
        backlog=snapshot.backlog,
        sampled=len(chosen),
        differences=[difference for one in found for difference in one],
    )


def show_reconciliation(found: Reconciliation) -> None:
    """Print the sums, the differences and what does not agree."""
    unconfirmed = f"{found.unconfirmed_usd:.6f} expected, at most {found.unconfirmed_most_usd:.6f}"
    for name, value in (
        ("ledger", f"{found.ledger_usd:.6f}"),
        ("unconfirmed", unconfirmed),
        ("OpenRouter", f"{found.billed_usd:.6f}"),
        ("files", f"{found.files_usd:.6f}"),
    ):
        out.print(f"{name:<12} {value} USD", highlight=False)
    if found.backlog:
        out.print(f"{found.backlog:,} completions are not on disk yet", highlight=False)
    writer = csv.writer(sys.stdout, delimiter="\t", lineterminator="\n")
    writer.writerows(astuple(difference) for difference in found.differences)
    for problem in found.problems():
        err.print(problem, style="red", highlight=False, soft_wrap=True)
    if not found.problems():
        out.print(f"All agrees; {found.sampled:,} answers were looked up.", highlight=False)


def _table(folder: Path) -> pa.Table:
    """The columns that matter of every part file."""
    files = sorted(folder.rglob("part-*.parquet"))
    schema = pa.schema([COMPLETIONS.field(name) for name in COLUMNS])
    if not files:
        return schema.empty_table()
    return ds.dataset(files, schema=schema, format="parquet").to_table()


def _differences(account: Account, row: dict[str, Any]) -> list[Difference]:
    record = _record(account, row["generation_id"])
    if record is None:
        return [_difference(row, "generation_id", "not known")]
    return [
        _difference(row, ours, record.get(theirs))
        for ours, theirs in RECORD.items()
        if not _same(row[ours], record.get(theirs))
    ]


def _record(account: Account, generation_id: str) -> dict[str, Any] | None:
    for last in _tries():
        record = account.generation(generation_id)
        if record is not None or last:
            return record
    return None


def _tries() -> Iterator[bool]:
    """Whether this try is the last, with a wait between them."""
    for n in range(TRIES):
        yield n == TRIES - 1
        time.sleep(TRY_AGAIN_S * 2**n)


def _difference(row: dict[str, Any], field: str, theirs: Any) -> Difference:
    return Difference(row["prompt_id"], row["generation_id"], field, row[field], theirs)


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return abs(ours - theirs) <= max(1e-9, 1e-6 * abs(theirs))
    return bool(ours == theirs)
