"""Part files: Parquet files that appear whole or not at all and say what they cover.

In: rows in the order of a schema. Out: `<folder>/part-<last stream id>-<random>.parquet`.
Invariants: a file stands under its final name only when its bytes are on the disk; it is
never changed or replaced afterwards; its metadata names the first and the last stream entry
in it. It does not know Redis, nor what a row means.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet import __version__
from fleet.errors import InputError
from workers.rows import Identity

#: Milliseconds and sequence number, as Redis counts them; they compare as tuples.
StreamId = tuple[int, int]

FIRST = b"eagle_fleet.first_stream_id"
LAST = b"eagle_fleet.last_stream_id"
ROWS = b"eagle_fleet.rows"
WRITER = b"eagle_fleet.writer"

#: Readers skip names with a leading dot.
TEMPORARY = ".part-*.tmp"
ROW_GROUP_ROWS = 10_000
ROW_GROUP_BYTES = 32 * 1024 * 1024
#: Columns whose values repeat. The long texts never do, so a dictionary would be wasted on them.
REPEATING = (
    "dataset",
    "reason",
    "tools",
    "finish_reason",
    "native_finish_reason",
    "model",
    "provider",
    "suspect",
    "worker",
    "endpoint",
    "turn",
    "attempts",
)
IDENTITY = ("prompt_id", "worker", "attempts", "completed_at", "latency_s")


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part file."""

    path: Path
    rows: int
    #: The stream entries it covers; None for a file that something else has written.
    first: StreamId | None
    last: StreamId | None
    #: Size on disk; 0 when it was not written by this process.
    file_bytes: int = 0


def parse_id(text: bytes) -> StreamId:
    milliseconds, _, sequence = text.partition(b"-")
    return int(milliseconds), int(sequence)


def format_id(stream_id: StreamId) -> str:
    return f"{stream_id[0]}-{stream_id[1]}"


def write(
    folder: Path,
    schema: pa.Schema,
    rows: Sequence[tuple[Any, ...]],
    span: tuple[StreamId, StreamId],
    text_bytes: int,
) -> Part:
    """Write `rows` as one new part file and make it durable.

    Args:
        span: the first and the last stream id among the rows.
        text_bytes: about how much text the rows hold; it decides the size of row groups.

    Raises:
        OSError: the disk is full or fails; nothing is left behind but what a crash leaves.
    """
    make_folder(folder)
    name = f"part-{format_id(span[1])}-{secrets.token_hex(4)}.parquet"
    temporary, path = folder / f".{name}.tmp", folder / name
    table = _table(schema, rows, span)
    groups = max(-(-len(rows) // ROW_GROUP_ROWS), -(-text_bytes // ROW_GROUP_BYTES))
    try:
        with temporary.open("xb") as file:
            pq.write_table(
                table,
                file,
                compression="zstd",
                row_group_size=-(-len(rows) // groups),
                use_dictionary=[column for column in REPEATING if column in schema.names],
            )
            file.flush()
            os.fsync(file.fileno())
            file_bytes = file.tell()
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return Part(path, len(rows), *span, file_bytes)


def _table(
    schema: pa.Schema, rows: Sequence[tuple[Any, ...]], span: tuple[StreamId, StreamId]
) -> pa.Table:
    metadata = {
        FIRST: format_id(span[0]),
        LAST: format_id(span[1]),
        ROWS: str(len(rows)),
        WRITER: f"eagle-fleet {__version__}",
    }
    columns = [
        pa.array(values, field.type)
        for field, values in zip(schema, zip(*rows, strict=True), strict=True)
    ]
    return pa.table(columns, schema=schema.with_metadata(metadata))


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, so that they survive a loss of power."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> int:
    """Remove what writers that died have left; returns how many files."""
    leftovers = list(folder.glob(TEMPORARY))
    for path in leftovers:
        path.unlink()
    return len(leftovers)


def scan(folder: Path) -> list[Part]:
    """The part files of a folder.

    Raises:
        InputError: a file is not Parquet.
    """
    return [_part(path) for path in sorted(folder.glob("*.parquet"))]


def _part(path: Path) -> Part:
    with _named(path):
        footer = pq.read_metadata(path)
    metadata = footer.metadata or {}
    if FIRST not in metadata or LAST not in metadata:
        return Part(path, footer.num_rows, None, None)
    return Part(path, footer.num_rows, parse_id(metadata[FIRST]), parse_id(metadata[LAST]))


def prompt_ids(part: Part) -> list[str]:
    """The prompt of every row."""
    with _named(part.path):
        ids: list[str] = pq.read_table(part.path, columns=["prompt_id"], partitioning=None)[
            "prompt_id"
        ].to_pylist()
    return ids


def identities(part: Part) -> Iterator[Identity]:
    """What tells each row's response from every other."""
    with _named(part.path):
        table = pq.read_table(part.path, columns=list(IDENTITY), partitioning=None)
    index = IDENTITY.index("completed_at")
    milliseconds = table["completed_at"].cast(pa.int64())
    columns = table.set_column(table.schema.get_field_index("completed_at"), "ms", milliseconds)
    names = [*IDENTITY[:index], "ms", *IDENTITY[index + 1 :]]
    return zip(*(columns[name].to_pylist() for name in names), strict=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds to a reader's error the file and what to do."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        raise InputError(
            f"{path}: cannot be read as a part file ({error}); move it out of the run's "
            "directory, but keep it: its prompts count as done on the ledger"
        ) from error
