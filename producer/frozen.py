"""`prompts/<dataset>.parquet`: the frozen prompts of a dataset.

In: prompts, chain by chain. Out: a Parquet file, and its rows again, streamed in order.
Invariant: a file under its final name is complete, and its row order never changes; a chain's
follow-ups stand directly after its first turn. Memory is bounded by one row group.
"""

import bisect
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError
from fleet.schemas import PROMPTS

#: A row group ends at either; small enough to skip by, large enough to compress.
GROUP_ROWS = 8_192
GROUP_CHARS = 4 << 20
BATCH_ROWS = 2_048
METADATA_KEY = b"eagle-fleet"


class Prompt(NamedTuple):
    """A row of the file; its fields are `fleet.schemas.PROMPTS`."""

    prompt_id: str
    #: JSON text, as is `tools`.
    messages: str
    tools: str | None
    parent_prompt_id: str | None
    turn: int
    source: str
    line: int


class Writer:
    """Writes the file under a temporary name; `finish` gives it its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._rows: list[Prompt] = []
        self._chars = 0
        self._file = pq.ParquetWriter(self._temporary, PROMPTS, compression="zstd")

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file.is_open:
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def write(self, chain: list[Prompt]) -> None:
        self._rows += chain
        self._chars += sum(len(prompt.messages) for prompt in chain)
        if len(self._rows) >= GROUP_ROWS or self._chars >= GROUP_CHARS:
            self._flush()

    def finish(self, metadata: dict[str, Any]) -> None:
        """Give the file its name, with the metadata in it."""
        self._flush()
        self._file.add_key_value_metadata({METADATA_KEY: json.dumps(metadata).encode()})
        self._file.close()
        publish(self._temporary, self.path)

    def _flush(self) -> None:
        if self._rows:
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*self._rows, strict=True), PROMPTS, strict=True)
            ]
            self._file.write_table(pa.Table.from_arrays(columns, schema=PROMPTS))
            self._rows, self._chars = [], 0


def publish(temporary: Path, path: Path) -> None:
    """Give a complete file its final name, so that it survives a crash of the machine."""
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_metadata(path: Path) -> dict[str, Any]:
    """What `Writer.finish` put beside the rows."""
    try:
        return dict(json.loads(pq.read_metadata(path).metadata[METADATA_KEY]))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: not a file of frozen prompts of this version; move it away and try again"
        ) from error


def read_prompts(path: Path, start_row: int = 0) -> Iterator[Prompt]:
    """The prompts in order, from row `start_row` (from 0) on."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        first = bisect.bisect_right(ends, start_row)
        skip = start_row - (ends[first - 1] if first else 0)
        for group in range(first, len(sizes)):
            # One group at a time: batches over several would join them in memory.
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False):
                rows = batch.slice(min(skip, batch.num_rows))
                skip -= batch.num_rows - rows.num_rows
                columns = [column.to_pylist() for column in rows.columns]
                yield from map(Prompt._make, zip(*columns, strict=True))


def iter_chains(path: Path, start_row: int = 0) -> Iterator[tuple[int, list[Prompt]]]:
    """The chains in order: the row of the first turn, and its prompt with its follow-ups.

    A `start_row` within a chain begins with the chain after it.
    """
    chain: list[Prompt] = []
    first = start_row
    for row, prompt in enumerate(read_prompts(path, start_row), start=start_row):
        if prompt.turn == 0:
            if chain:
                yield first, chain
            first, chain = row, [prompt]
        elif chain:
            chain.append(prompt)
    if chain:
        yield first, chain


def iter_ids(path: Path) -> Iterator[bytes]:
    """All prompt ids in order, as 16 bytes."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(1 << 16, columns=["prompt_id"], use_threads=False):
            yield from map(bytes.fromhex, batch.column(0).to_pylist())


def has_tools(path: Path) -> bool:
    """Whether some prompt of a frozen dataset carries tools, by the file's statistics."""
    metadata = pq.read_metadata(path)
    place = metadata.schema.names.index("tools")
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    return any(g.column(place).statistics.null_count < g.num_rows for g in groups)
