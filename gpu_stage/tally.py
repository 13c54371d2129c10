"""Samples counted: fidelity, reasons and differences of counts, by dataset and provider.

In: a run's samples, a part at a time. Out: a `Tally` for each dataset and provider. Memory is
bounded by the distinct values, not by the rows; the ids are never read.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fleet.errors import InputError
from gpu_stage.samples import dataset_of
from tokens import Fidelity
from tokens.conversation import ENDED

#: Examples that are kept of a dataset and provider.
WORST = 3
COUNTED = ("provider", "fidelity", "reason", "finish_reason", "prompt_off", "completion_off")
READ = [
    *("prompt_id", "provider", "fidelity", "reason", "finish_reason", "completion_length"),
    *("prompt_found", "prompt_billed", "completion_found", "completion_billed"),
]


@dataclass(frozen=True, order=True)
class Example:
    """A sample whose counts are off."""

    #: How far, prompt and completion together.
    off: int
    part: Path
    row: int


@dataclass
class Tally:
    """What became of the completions of one dataset by one provider."""

    rows: int = 0
    #: Of the completions of samples that are not rejected.
    completion_tokens: int = 0
    fidelity: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    #: Billed minus found, where both are known.
    prompt: Counter[int] = field(default_factory=Counter)
    completion: Counter[int] = field(default_factory=Counter)
    #: The same of answers that ended, which have an end token.
    ended: Counter[int] = field(default_factory=Counter)
    #: A heap, the least at its top.
    worst: list[Example] = field(default_factory=list)

    def add(self, counted: dict[str, Any]) -> None:
        """Take in rows that are alike."""
        rows, fidelity = counted["rows"], counted["fidelity"]
        self.rows += rows
        self.fidelity[fidelity] += rows
        if fidelity == Fidelity.REJECTED:
            self.reasons[counted["reason"]] += rows
        else:
            self.completion_tokens += counted["tokens"]
        if counted["prompt_off"] is not None:
            self.prompt[counted["prompt_off"]] += rows
        if counted["completion_off"] is not None:
            self.completion[counted["completion_off"]] += rows
            if counted["finish_reason"] in ENDED:
                self.ended[counted["completion_off"]] += rows

    def remember(self, example: Example) -> None:
        if len(self.worst) < WORST:
            heapq.heappush(self.worst, example)
        else:
            heapq.heappushpop(self.worst, example)


#: By dataset and provider.
Tallies = dict[tuple[str, str | None], Tally]


def tally(parts: Iterable[Path]) -> Tallies:
    """Count the samples of these files.

    Raises:
        InputError: one is not a file of samples.
    """
    found: Tallies = {}
    for part in parts:
        dataset, rows = dataset_of(part), _rows(part)
        for counted in _alike(rows):
            found.setdefault((dataset, counted["provider"]), Tally()).add(counted)
        off = rows.select(["provider", "off", "row"]).filter(pc.greater(rows["off"], 0))
        for provider, far, row in zip(*off.to_pydict().values(), strict=True):
            found[dataset, provider].remember(Example(far, part, row))
    return found


def _rows(part: Path) -> pa.Table:
    """A file's rows with the differences of their counts."""
    try:
        table = pq.read_table(part, columns=READ, partitioning=None)
    except (pa.ArrowInvalid, KeyError) as error:
        raise InputError(
            f"{part}: cannot be read as a file of samples ({error}); move it away, "
            "`gpu-stage tokens` makes it again"
        ) from error
    prompt = pc.subtract(table["prompt_billed"], table["prompt_found"])
    completion = pc.subtract(table["completion_billed"], table["completion_found"])
    sides = (one.cast(pa.int64()) for one in (prompt, completion))
    off = pc.add(*(pc.fill_null(pc.abs(one), 0) for one in sides))
    table = table.append_column("prompt_off", prompt).append_column("completion_off", completion)
    return table.append_column("off", off).append_column("row", pa.array(range(len(table))))


def _alike(rows: pa.Table) -> Iterable[dict[str, Any]]:
    """How many rows are alike, and how many completion tokens they have."""
    counts = rows.group_by(list(COUNTED)).aggregate(
        [([], "count_all"), ("completion_length", "sum")]
    )
    names = {"count_all": "rows", "completion_length_sum": "tokens"}
    counts = counts.rename_columns([names.get(name, name) for name in counts.column_names])
    listed: list[dict[str, Any]] = counts.to_pylist()
    return listed
