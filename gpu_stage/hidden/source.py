"""The samples that hidden states are made of: of a run, or of a merged set.

In: a run's directory or run file, or a set's folder. Out: its part files, in the order in which
they are extracted, and rows of them. Rejected rows are no samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError
from gpu_stage.files import sha256
from gpu_stage.runs import open_run
from gpu_stage.samples import dataset_of

#: Of a set; what is held out comes first, since training needs it from its first validation on.
SIDES = ("heldout", "train")
COLUMNS = ["prompt_id", "input_ids", "loss_spans"]


class SampleRow(NamedTuple):
    """A sample as it is extracted."""

    prompt_id: str
    dataset: str
    ids: list[int]
    #: Half-open ranges of `ids` that the target wrote.
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class SourcePart:
    """One file of samples."""

    path: Path
    #: Under the source's folder of samples, without suffix: what its shards are called.
    name: str

    def lengths(self) -> list[int]:
        """Tokens of each row, in order; 0 for one that is no sample.

        Raises:
            InputError: it cannot be read.
        """
        try:
            table = pq.read_table(
                self.path,
                columns=["prompt_length", "completion_length", "fidelity"],
                partitioning=None,
            )
        except (pa.ArrowInvalid, KeyError) as error:
            raise InputError(
                f"{self.path}: not a file of samples ({error}); move it away"
            ) from error
        columns = (column.to_pylist() for column in table.columns)
        return [
            0 if fidelity == "rejected" else prompt + completion
            for prompt, completion, fidelity in zip(*columns, strict=True)
        ]

    def sha256(self) -> str:
        return sha256(self.path)

    def rows(self, start: int, end: int) -> Iterator[SampleRow]:
        """The samples among the rows from `start` to before `end`."""
        with pq.ParquetFile(self.path) as file:
            here = set(file.schema_arrow.names)
            dataset = None if "dataset" in here else dataset_of(self.path)
            columns = [*COLUMNS, "fidelity", *([] if dataset else ["dataset"])]
            first = 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                low, high = max(start - first, 0), min(end - first, count)
                if low < high:
                    table = file.read_row_group(group, columns).slice(low, high - low)
                    yield from _samples(table, dataset)
                first += count


@dataclass(frozen=True)
class Source:
    """A run's samples, or a set's."""

    directory: Path
    parts: Sequence[SourcePart]
    #: The target's folder, where the source says it.
    target: Path | None


def open_source(path: Path) -> Source:
    """
    Args:
        path: a run's directory, its run file, or a set's folder.

    Raises:
        ConfigError: there is no such thing.
        InputError: it has no samples.
    """
    if (path / "set.json").exists():
        parts = [part for side in SIDES for part in _parts(path, f"{side}/part-*.parquet")]
        source = Source(path, parts, None)
    else:
        run = open_run(path)
        samples = run.directory / "samples"
        parts = _parts(samples, "dataset=*/part-*.parquet")
        source = Source(run.directory, parts, run.config.target if run.config else None)
    if not source.parts:
        raise InputError(
            f"{path}: no samples there; `gpu-stage tokens` makes those of a run, `gpu-stage merge` "
            "a set of them"
        )
    return source


def _parts(folder: Path, pattern: str) -> list[SourcePart]:
    return [
        SourcePart(path, str(path.relative_to(folder).with_suffix("")))
        for path in sorted(folder.glob(pattern))
    ]


def _samples(table: pa.Table, dataset: str | None) -> Iterator[SampleRow]:
    for row in table.to_pylist():
        if row["fidelity"] != "rejected":
            spans = [(span["start"], span["end"]) for span in row["loss_spans"]]
            yield SampleRow(row["prompt_id"], dataset or row["dataset"], row["input_ids"], spans)
