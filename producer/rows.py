"""What the readers hand on: a row as it stands in its file, or a fault in its place.

In: nothing. Out: `Row`, `Fault`, the limits of both. Invariant: every row of a file appears as
exactly one of the two, with the file and the line (Parquet: the row; JSON: the element; all
from 1) where its owner finds it.
"""

import json
from typing import Any, NamedTuple

#: Longest line, CSV record or JSON element held in memory; a longer one is set aside.
MAX_ROW_BYTES = 64 << 20
#: Most characters of a row that are kept in the file of rejects.
MAX_REJECT_CHARS = 2_000


class Row(NamedTuple):
    """A row that could be read."""

    source: str
    line: int
    value: Any
    #: The text of the row; None where the file holds no text (CSV, Parquet).
    raw: bytes | None = None


class Fault(NamedTuple):
    """A row that could not be read, or the place where a file broke off."""

    source: str
    line: int
    #: A few stable words, counted in the summary.
    kind: str
    #: A sentence for the user.
    reason: str
    raw: bytes | None = None


def excerpt(row: Row | Fault) -> str:
    """The text of a row for the file of rejects, cut to `MAX_REJECT_CHARS`."""
    if row.raw is not None:
        text = row.raw[: 4 * MAX_REJECT_CHARS].decode("utf-8", "backslashreplace")
    elif isinstance(row, Row):
        text = json.dumps(row.value, ensure_ascii=False, default=repr)
    else:
        text = ""
    return text[:MAX_REJECT_CHARS]
