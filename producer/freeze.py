"""A dataset → `prompts/<dataset>.parquet`, written once, and `rejects/prompts-<dataset>.jsonl`.

In: the dataset's options and files. Out: the two files and a summary. Invariant: frozen
prompts are never written again; each row read is a conversation, a duplicate or a reject;
no prompt id stands twice in a run. The only thing that grows with the input is the set of
ids seen.

Duplicates are told by prompt ids, chain by chain. All of a chain known: a duplicate. Only its
first turns known: refused, because its follow-ups would have to stand after another
conversation's; that is rare, and counted under its own reason.
"""

import fcntl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fleet.errors import InputError
from fleet.records import canonical_json, prompt_id
from fleet.run_config import Dataset, Sampling
from producer.frozen import Prompt, Writer, iter_chains, iter_ids, read_metadata, read_prompts
from producer.identity import Identity, check_same_target, identity, what_changed
from producer.messages import Unusable
from producer.readers import read
from producer.rejects import RejectFile
from producer.rows import Fault, Row, excerpt
from producer.shapes import Conversation, check_options, conversation
from producer.sources import Source, resolve

#: The readers of what this module writes are part of its interface.
__all__ = ["FreezeSummary", "freeze", "iter_chains", "iter_ids", "read_prompts"]


class FreezeSummary(msgspec.Struct, frozen=True):
    """What became of a dataset's rows: conversations + duplicates + rejected = rows_read."""

    dataset: str
    #: Rows in the Parquet file: one for each answer to buy.
    prompts: int
    #: Conversations they belong to.
    conversations: int
    #: Rows of the sources, and one for each place where a file broke off.
    rows_read: int
    duplicates: int
    rejected: int
    #: Rejects by kind.
    reasons: dict[str, int]
    #: The prompts were frozen by an earlier call and are kept.
    already_frozen: bool = False
    #: What differs from what was frozen, and what to do about it; None if nothing does.
    changed: str | None = None


def freeze(
    dataset: Dataset,
    base: Path,
    directory: Path,
    model: str,
    sampling: Sampling,
    *,
    strict: bool = False,
    seen: set[bytes],
) -> FreezeSummary:
    """Freeze a dataset's prompts, or find them frozen.

    Args:
        base: the folder that the dataset's paths are relative to.
        directory: the run's.
        strict: fail on the first row that cannot be used.
        seen: the ids of the run's prompts, 16 bytes each; this dataset's are added.

    Raises:
        InputError: a file cannot be read, no row is usable, or `strict` and one is not.
        ConfigError: an option is wrong, or differs from those of the frozen prompts.
    """
    check_options(dataset)
    path = directory / "prompts" / f"{dataset.name}.parquet"
    rejects = directory / "rejects" / f"prompts-{dataset.name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rejects.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        if path.exists():
            summary = _find(path, dataset, base, identity(dataset, [], model, sampling))
            if strict and summary.rejected:
                raise InputError(f"{rejects}: {summary.rejected:,} rows could not be used")
            seen.update(iter_ids(path))
            return summary
        _add_frozen(path.parent, seen)
        sources = resolve(dataset.patterns(), base)
        made_from = identity(dataset, sources, model, sampling)
        return _Freezer(dataset, made_from, strict, seen).run(sources, path, rejects)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the dataset's lock, so that of two producers one freezes and the other finds it.

    The lock file stays: to delete it would let a third producer lock another one.
    """
    with path.with_name(f".{path.stem}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add_frozen(folder: Path, seen: set[bytes]) -> None:
    """Add the ids of datasets that are frozen but come later in the run file."""
    for path in sorted(folder.glob("*.parquet")):
        if next(iter_ids(path), b"") not in seen:  # else the whole file was added before
            seen.update(iter_ids(path))


def _find(path: Path, dataset: Dataset, base: Path, asked: Identity) -> FreezeSummary:
    """The summary of prompts that are frozen already."""
    metadata = read_metadata(path)
    frozen = msgspec.convert(metadata["identity"], Identity)
    check_same_target(path, frozen, asked)
    summary = msgspec.convert(metadata["summary"], FreezeSummary)
    return msgspec.structs.replace(
        summary, already_frozen=True, changed=what_changed(dataset, base, frozen, asked)
    )


class _Freezer:
    """One dataset on its way into the two files."""

    def __init__(
        self, dataset: Dataset, made_from: Identity, strict: bool, seen: set[bytes]
    ) -> None:
        self._dataset = dataset
        self._made_from = made_from
        self._strict = strict
        self._seen = seen
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._first_reject = ""

    def run(self, sources: list[Source], path: Path, rejects: Path) -> FreezeSummary:
        """Read all rows. The prompts get their name last: a crash before leaves none."""
        with Writer(path) as prompts, RejectFile(rejects) as rejected:
            for source in sources:
                for row in read(source):
                    self._take(row, prompts, rejected)
            rejected.finish()
            summary = self._summary()
            if summary.rejected == summary.rows_read:
                raise InputError(
                    f"dataset {self._dataset.name}: none of {summary.rows_read:,} rows can be "
                    f"used; the first: {self._first_reject}; all are in {rejects}"
                )
            document = {"identity": self._made_from, "summary": summary}
            prompts.finish(msgspec.to_builtins(document))
        return summary

    def _take(self, row: Row | Fault, prompts: Writer, rejected: RejectFile) -> None:
        self._counts["rows_read"] += 1
        try:
            if isinstance(row, Fault):
                raise Unusable(row.kind, row.reason)
            chain = self._chain(row, conversation(row.value, self._dataset))
            if self._is_new(chain):
                prompts.write(chain)
        except Unusable as unusable:
            self._reject(row, unusable, rejected)

    def _chain(self, row: Row, talk: Conversation) -> list[Prompt]:
        """The prompts of a conversation, each but the first with the one before as parent."""
        tools = None if talk.tools is None else canonical_json(talk.tools)
        chain: list[Prompt] = []
        parent = None
        for turn, messages in enumerate(talk.turns):
            name = prompt_id(
                self._made_from.model, self._made_from.sampling, messages, talk.tools, parent
            )
            text = canonical_json(messages)
            chain.append(Prompt(name, text, tools, parent, turn, row.source, row.line))
            parent = name
        return chain

    def _is_new(self, chain: list[Prompt]) -> bool:
        """Whether to write a chain; its ids are now seen."""
        ids = [bytes.fromhex(prompt.prompt_id) for prompt in chain]
        if ids[-1] in self._seen:  # an id stands for all turns before it
            self._counts["duplicates"] += 1
            return False
        if ids[0] in self._seen:
            reason = "shares its first turn with an earlier conversation, and goes on differently"
            raise Unusable("shared first turn", reason)
        self._seen.update(ids)
        self._counts["conversations"] += 1
        self._counts["prompts"] += len(ids)
        return True

    def _reject(self, row: Row | Fault, unusable: Unusable, rejected: RejectFile) -> None:
        message = f"{row.source}:{row.line}: {unusable.reason}"
        if self._strict:
            raise InputError(message) from unusable
        self._first_reject = self._first_reject or message
        self._reasons[unusable.kind] += 1
        rejected.write(row.source, row.line, unusable.reason, excerpt(row))

    def _summary(self) -> FreezeSummary:
        counts = self._counts
        return FreezeSummary(
            dataset=self._dataset.name,
            prompts=counts["prompts"],
            conversations=counts["conversations"],
            rows_read=counts["rows_read"],
            duplicates=counts["duplicates"],
            rejected=self._reasons.total(),
            reasons=dict(self._reasons.most_common()),
        )
