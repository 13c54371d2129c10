"""Part files row by row, in bounded memory: completions, samples, and the files of a set.

It knows nothing of what the columns mean.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError

BATCH_ROWS = 1024


def read_batches(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    """A part file in small tables.

    Raises:
        InputError: it is not Parquet, or lacks a column.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
                yield pa.Table.from_batches([batch]).select(columns)
    except (pa.ArrowInvalid, KeyError) as error:
        raise InputError(
            f"{path}: cannot be read as a part file ({error}); move it away"
        ) from error


def read_rows(path: Path, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a part file, as tuples in the order of `columns`.

    Raises:
        InputError: it is not Parquet, or lacks a column.
    """
    for table in read_batches(path, columns):
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)
