"""One part of completions made into one part of samples.

In: a part file, a recipe. Out: the samples file of the same name, one row a completion, in the
same order. Memory is bounded: a batch of rows is read, judged and handed on at a time. Safe while
the collector writes, since a part file never changes, and while others do the same.
"""

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError
from gpu_stage import claimed_file, sample_file
from gpu_stage.judge import Row, judge
from gpu_stage.marks import read_marks
from gpu_stage.recipe import Recipe
from gpu_stage.samples import SAMPLES, samples_of
from tokens import Sample

#: Rows that are judged before they are handed on.
BATCH_ROWS = 64
COPIED = ("prompt_id", "provider", "endpoint", "finish_reason", "cost_usd")
JUDGED = ("messages", "tools", "response")
INT32_MAX = 2**31 - 1

#: Told of the rows and tokens of every batch.
Tell = Callable[[int, int], None]


class Outcome(StrEnum):
    """What became of a part."""

    MADE = "made"
    #: It has samples by this recipe.
    UP_TO_DATE = "up to date"
    #: Another process is making them.
    BUSY = "busy"


def up_to_date(directory: Path, part: Path, recipe: Recipe) -> bool:
    """Whether a part has its samples."""
    return read_marks(samples_of(directory, part)) == recipe.marks


def tokenise(directory: Path, part: Path, recipe: Recipe, tell: Tell) -> Outcome:
    """Make the samples of a part, unless they are there or being made.

    Raises:
        InputError: the part is not a part file of completions.
        OSError: the disk is full or fails; the samples are made anew the next time.
    """
    path = samples_of(directory, part)
    with claimed_file.claim(path) as file:
        if up_to_date(directory, part, recipe):
            return Outcome.UP_TO_DATE
        if file is None:
            return Outcome.BUSY
        sample_file.write(file, path, _batches(part, recipe, tell), recipe.marks)
    return Outcome.MADE


def _batches(part: Path, recipe: Recipe, tell: Tell) -> Iterator[pa.RecordBatch]:
    renderer = recipe.renderer()
    for batch in _read(part):
        columns = [batch.column(name).cast(pa.binary()).to_pylist() for name in JUDGED]
        rows = itertools.starmap(Row, zip(*columns, batch["provider"].to_pylist(), strict=True))
        made = _columns(batch, [judge(renderer, recipe, row) for row in rows])
        tell(made.num_rows, len(made.column("input_ids").values))
        yield made


def _read(part: Path) -> Iterator[pa.RecordBatch]:
    """The columns that samples are made of, by row groups: their texts are bounded."""
    columns = [*COPIED, *JUDGED]
    try:
        with pq.ParquetFile(part) as file:
            if missing := set(columns) - set(file.schema_arrow.names):
                raise InputError(_not_a_part(part, f"it lacks {', '.join(sorted(missing))}"))
            for group in range(file.num_row_groups):
                yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(_not_a_part(part, str(error))) from error


def _not_a_part(part: Path, why: str) -> str:
    return (
        f"{part}: cannot be read as a part of completions ({why}); move it out of the run's "
        "directory, but keep it: its prompts count as done on the ledger"
    )


def _columns(batch: pa.RecordBatch, samples: Sequence[Sample]) -> pa.RecordBatch:
    """The rows of a samples file."""
    made: dict[str, Any] = {name: batch.column(name) for name in COPIED} | {
        "input_ids": _id_lists(samples),
        "loss_spans": [
            [{"start": start, "end": end} for start, end in s.loss_spans] for s in samples
        ],
        "prompt_length": [s.prompt_length for s in samples],
        "completion_length": [len(s.input_ids) - s.prompt_length for s in samples],
        "fidelity": [s.fidelity for s in samples],
        "reason": [s.reason for s in samples],
        "detail": [s.detail or None for s in samples],
        "confidence": [s.confidence for s in samples],
        "prompt_found": [s.counts.prompt_found for s in samples],
        "prompt_billed": [_int32(s.counts.prompt_billed) for s in samples],
        "completion_found": [s.counts.completion_found for s in samples],
        "completion_billed": [_int32(s.counts.completion_billed) for s in samples],
    }
    arrays = [
        made[f.name] if isinstance(made[f.name], pa.Array) else pa.array(made[f.name], f.type)
        for f in SAMPLES
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SAMPLES)


def _id_lists(samples: Sequence[Sample]) -> pa.ListArray:
    """The ids of all samples in one buffer: much faster than lists of Python's numbers."""
    offsets = [0, *itertools.accumulate(len(s.input_ids) for s in samples)]
    ids = b"".join(struct.pack(f"{len(s.input_ids)}i", *s.input_ids) for s in samples)
    values = pa.Array.from_buffers(pa.int32(), offsets[-1], [None, pa.py_buffer(ids)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _int32(count: int | None) -> int | None:
    """A count of tokens; one that no response can have is none."""
    return count if count is None or count <= INT32_MAX else None
