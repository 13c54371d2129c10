"""A samples file being made: claimed by one process, whole or absent, marked with its making.

In: record batches of `SAMPLES`, marks. Out: the file under its final name, with the marks in its
Parquet metadata. Invariants: the file stands under its name only when its bytes are on the disk; of
two processes that want to make it, one does. The claim is a lock on the temporary file, so it ends
with the process that has it, and what a dead one left is written over.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from fleet import __version__
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


@contextmanager
def claim(path: Path) -> Iterator[BinaryIO | None]:
    """The temporary file of `path`, empty; None while another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(path)
    with temporary.open("ab") as file:
        if not _lock(file) or not _is(file, temporary):
            yield None
            return
        try:
            file.truncate(0)
            file.seek(0)
            yield file
        finally:
            if _is(file, temporary):  # not written, or not to its end
                temporary.unlink()


def claimed(path: Path) -> bool:
    """Whether a process is making this samples file."""
    try:
        with temporary_of(path).open("rb") as file:
            return not _lock(file)
    except FileNotFoundError:
        return False


def temporary_of(path: Path) -> Path:
    """Readers skip names with a leading dot."""
    return path.with_name(f".{path.name}.tmp")


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
    file.flush()
    os.fsync(file.fileno())
    temporary_of(path).replace(path)
    _sync(path.parent)


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


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(file: BinaryIO, path: Path) -> bool:
    """Whether `path` is still the open file: it may have got its final name meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
