"""Dataset files → rows, streaming.

In: a `Source`. Out: `Row` or `Fault` for each of its rows, in order. Invariant: memory does
not grow with the file; no row is passed over in silence; a compressed file that breaks off
gives all its rows up to that place, then a `Fault`.
"""

from collections.abc import Iterator

from fleet.errors import InputError
from producer.csv_rows import csv_rows
from producer.formats import Format, detect
from producer.json_rows import json_document, json_lines
from producer.parquet_rows import parquet_rows
from producer.rows import MAX_ROW_BYTES, Fault, Row
from producer.sources import Source
from producer.streams import Damaged


def read(source: Source, limit_bytes: int = MAX_ROW_BYTES) -> Iterator[Row | Fault]:
    """The rows of a file.

    Raises:
        InputError: the file is of no known format, or holds no row at all.
    """
    line = 0
    try:
        for row in _rows(source, detect(source.path), limit_bytes):
            line = row.line
            yield row
    except Damaged as error:
        reason = f"file truncated: {error}; the rows before were read; download the file again"
        yield Fault(source.name, line + 1, "file truncated", reason)
        return
    except OSError as error:
        raise InputError(
            f"{source.path}: cannot be read behind row {line:,} ({error.strerror or error})"
        ) from error
    if line == 0:
        raise InputError(f"{source.path}: the file holds no row; take it off `path`")


def _rows(source: Source, format: Format, limit_bytes: int) -> Iterator[Row | Fault]:
    match format.kind:
        case "jsonl":
            return json_lines(source, format.codec, limit_bytes)
        case "json":
            return json_document(source, format.codec, limit_bytes)
        case "csv":
            return csv_rows(source, format.codec, limit_bytes)
        case "tsv":
            return csv_rows(source, format.codec, limit_bytes, "\t")
        case "parquet":
            return parquet_rows(source)
