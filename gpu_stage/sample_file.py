"""A samples file, marked with its making.

In: record batches of `SAMPLES`, marks, a claimed file. Out: the file under its final name, with the
marks in its Parquet metadata.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from fleet import __version__
from gpu_stage.claimed_file import finish
from gpu_stage.marks import Marks
from gpu_stage.samples import SAMPLES

WRITER = b"eagle_fleet.writer"
#: The ids, as Parquet names the values of a list.
IDS = "input_ids.list.element"
#: A row group has about so many tokens, and at most so many rows.
ROW_GROUP_TOKENS = 2_000_000
ROW_GROUP_ROWS = 10_000
#: Columns whose values repeat.
REPEATING = ("provider", "endpoint", "fidelity", "reason", "finish_reason")


def sizes(path: Path) -> tuple[int, int]:
    """Rows of a samples file, and about how many tokens, by its footer."""
    footer = pq.read_metadata(path)
    at = [footer.schema.column(n).path for n in range(footer.num_columns)].index(IDS)
    groups = (footer.row_group(n).column(at) for n in range(footer.num_row_groups))
    return footer.num_rows, sum(column.num_values for column in groups)


def write(file: BinaryIO, path: Path, batches: Iterable[pa.RecordBatch], marks: Marks) -> None:
    """Write a claimed file and give it its name."""
    schema = SAMPLES.with_metadata({**marks.metadata(), WRITER: f"eagle-fleet {__version__}"})
    with pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=list(REPEATING),
        write_statistics=[name for name in schema.names if name != "input_ids"],
    ) as writer:
        for group in _groups(batches):
            writer.write_table(pa.Table.from_batches(group).cast(schema))
    finish(file, path)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches put together to row groups."""
    group: list[pa.RecordBatch] = []
    rows = tokens = 0
    for batch in batches:
        group.append(batch)
        rows += batch.num_rows
        tokens += len(batch.column("input_ids").values)
        if rows >= ROW_GROUP_ROWS or tokens >= ROW_GROUP_TOKENS:
            yield group
            group, rows, tokens = [], 0, 0
    if group:
        yield group
