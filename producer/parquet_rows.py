"""Parquet → rows, in batches.

In: a `Source`. Out: `Row` or `Fault` with the row's number in the file, from 1. Invariant: a
damaged row group costs its own rows, and one bad value costs its row. Nulls that Parquet adds
to nested values, so that all have the same fields, are taken out again.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError
from producer.rows import Fault, Row
from producer.sources import Source

#: A batch ends at either; the rows of a group tell how large one is.
BATCH_ROWS = 1_024
BATCH_BYTES = 4 << 20
READ_ERRORS = (pa.ArrowException, OSError, ValueError)


def parquet_rows(source: Source) -> Iterator[Row | Fault]:
    """The rows of a Parquet file."""
    try:
        file = pq.ParquetFile(source.path, pre_buffer=False, buffer_size=1 << 20)
    except READ_ERRORS as error:
        raise InputError(
            f"{source.path}: cannot be read as Parquet, it may be cut ({error}); download it again"
        ) from error
    with file:
        nested = [field.name for field in file.schema_arrow if pa.types.is_nested(field.type)]
        row = 0
        for group in range(file.num_row_groups):
            yield from _group(source, file, group, row, nested)
            row += file.metadata.row_group(group).num_rows


def _group(
    source: Source, file: pq.ParquetFile, group: int, row: int, nested: list[str]
) -> Iterator[Row | Fault]:
    about = file.metadata.row_group(group)
    size = BATCH_BYTES * about.num_rows // max(about.total_byte_size, 1)
    size = min(max(size, 1), BATCH_ROWS)
    batches = file.iter_batches(size, row_groups=[group], use_threads=False)
    while True:
        try:
            batch = next(batches, None)
        except READ_ERRORS as error:
            reason = f"row group {group + 1} is damaged from here on ({_first_line(error)})"
            yield Fault(source.name, row + 1, "file damaged", reason)
            return
        if batch is None:
            return
        yield from _batch(source, batch, row, nested)
        row += batch.num_rows


def _batch(
    source: Source, batch: pa.RecordBatch, row: int, nested: list[str]
) -> Iterator[Row | Fault]:
    try:
        values = batch.to_pylist()
    except READ_ERRORS as error:
        if batch.num_rows > 1:
            for index in range(batch.num_rows):
                yield from _batch(source, batch.slice(index, 1), row + index, nested)
        else:
            reason = f"a value cannot be read ({_first_line(error)})"
            yield Fault(source.name, row + 1, "not UTF-8", reason)
        return
    for number, value in enumerate(values, start=row + 1):
        for name in nested:
            value[name] = _without_nulls(value[name])
        yield Row(source.name, number, value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
