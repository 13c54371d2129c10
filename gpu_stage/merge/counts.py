"""How often the target wrote each token: what the draft's vocabulary is chosen by; how many tokens
each sample has.

In: tables of samples. Out: counts by id, over the loss mask alone. Invariant: what a prompt holds
is never counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Counts = npt.NDArray[np.int64]


def count_tokens(tables: Iterable[pa.Table]) -> Counts:
    """Counts by token id, as long as the highest id that was written, and one."""
    counts = np.zeros(0, np.int64)
    for table in tables:
        ids, mask, _ = _flat(table)
        some = np.bincount(ids[mask])
        longer, shorter = (some, counts) if len(some) > len(counts) else (counts, some)
        longer[: len(shorter)] += shorter
        counts = longer
    return counts


def lengths(table: pa.Table) -> Counts:
    """How many tokens each sample says that it has."""
    return _column(table["prompt_length"]) + _column(table["completion_length"])


def loss_tokens(table: pa.Table) -> Counts:
    """How many tokens of each sample the target wrote."""
    owners, start, end = _spans(table)
    counts = np.zeros(table.num_rows, np.int64)
    np.add.at(counts, owners, end - start)
    return counts


def check_ids(table: pa.Table) -> int | None:
    """The first row whose ids, lengths and loss spans do not agree, or None."""
    found = _column(pc.list_value_length(table["input_ids"]))
    wrong = found != lengths(table)
    owners, start, end = _spans(table)
    wrong[owners[(start < 0) | (end <= start) | (end > found[owners])]] = True
    ids = table["input_ids"].combine_chunks()
    negative = _column(ids.flatten()) < 0
    wrong[_column(pc.list_parent_indices(ids))[negative]] = True
    return int(np.flatnonzero(wrong)[0]) if wrong.any() else None


def _flat(table: pa.Table) -> tuple[Counts, npt.NDArray[np.bool_], Counts]:
    """All ids of a table in a row, whether each is the target's, and where samples begin."""
    ids = table["input_ids"].combine_chunks()
    begins = np.r_[0, np.cumsum(_column(pc.list_value_length(ids)))]
    owners, start, end = _spans(table)
    steps = np.zeros(begins[-1] + 1, np.int8)
    np.add.at(steps, begins[owners] + start, 1)
    np.add.at(steps, begins[owners] + end, -1)
    return _column(ids.flatten()), np.cumsum(steps[:-1], dtype=np.int8) > 0, begins


def _spans(table: pa.Table) -> tuple[Counts, Counts, Counts]:
    """All loss spans of a table: their sample's place, where they start and end."""
    spans = table["loss_spans"].combine_chunks()
    start, end = (_column(spans.flatten().field(name)) for name in ("start", "end"))
    return _column(pc.list_parent_indices(spans)), start, end


def _column(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return np.asarray(values.to_numpy(zero_copy_only=False))
