"""CSV and TSV → rows, one a record, keyed by the header.

In: a `Source`. Out: `Row` or `Fault` with the line where the record starts. Invariant: a
quote that is never closed costs its own line, not the rest of the file: the lines behind
it are read again as records of their own.
"""

import csv
import io
import re
from collections import deque
from collections.abc import Iterator

from fleet.errors import InputError
from producer.json_rows import too_long, undecodable
from producer.rows import Fault, Row
from producer.sources import Source
from producer.streams import Codec, Line, lines, open_text

#: A byte that was not UTF-8, as `surrogateescape` decodes it.
ESCAPED = re.compile("[\udc80-\udcff]")


class Feed:
    """Lines for `csv.reader`, with those of the current record kept so they can go back."""

    def __init__(self, numbered: Iterator[Line]) -> None:
        self._lines = numbered
        self._again: deque[Line] = deque()
        self.record: list[Line] = []

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.record.append(line)
        if line.too_long:
            return "-\n"  # its quotes are unknown; the record is set aside in any case
        return line.data.decode("utf-8", "surrogateescape") + "\n"

    def give_back(self) -> None:
        """All lines of the current record but its first are to be read again."""
        self._again.extendleft(reversed(self.record[1:]))
        del self.record[1:]


def csv_rows(
    source: Source, codec: Codec | None, limit_bytes: int, delimiter: str = ","
) -> Iterator[Row | Fault]:
    """The records after the header."""
    csv.field_size_limit(limit_bytes)
    with open_text(source.path, codec) as stream:
        feed = Feed(lines(stream, limit_bytes))
        header, delimiter = _header(source, feed, delimiter)
        records = csv.reader(feed, delimiter=delimiter, strict=True)
        while True:
            feed.record.clear()
            try:
                fields = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                feed.give_back()
                yield _broken(source, feed.record[0], error)
                continue
            if fields:
                yield _row(source, header, fields, feed, limit_bytes)


def _header(source: Source, feed: Feed, delimiter: str) -> tuple[list[str], str]:
    """The column names, and the delimiter: `;` or a tab where the header has no comma."""
    first = next(feed, "")
    if delimiter == "," and "," not in first:
        delimiter = next((other for other in ";\t" if other in first), delimiter)
    try:
        fields = next(csv.reader(io.StringIO(first), delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise InputError(f"{source.path}:1: the header is not CSV: {error}") from error
    names = [name.strip() for name in fields]
    if not any(names) or ESCAPED.search(first) or "\0" in first:
        raise InputError(f"{source.path}:1: the first line is no header of column names in UTF-8")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{source.path}:1: the header names the column `{twice}` twice")
    return names, delimiter


def _row(
    source: Source, header: list[str], fields: list[str], feed: Feed, limit_bytes: int
) -> Row | Fault:
    first = feed.record[0]
    for line in feed.record:
        if line.too_long:
            return too_long(source, line._replace(number=first.number), limit_bytes, "line")
    if any(ESCAPED.search(field) for field in fields):
        return _undecodable(source, feed.record)
    if len(fields) != len(header):
        reason = f"{len(fields)} fields, but the header has {len(header)}"
        return Fault(source.name, first.number, "wrong number of fields", reason, first.data)
    return Row(source.name, first.number, dict(zip(header, fields, strict=True)), None)


def _undecodable(source: Source, record: list[Line]) -> Fault:
    for line in record:
        try:
            line.data.decode()
        except UnicodeDecodeError as error:
            return undecodable(source, line, error)._replace(line=record[0].number)
    raise AssertionError("called for a record that is UTF-8")


def _broken(source: Source, line: Line, error: csv.Error) -> Fault:
    if "unexpected end" in str(error):
        reason = "a quote is opened and never closed"
    elif "field larger" in str(error):
        reason = "a quote is opened and the field then runs past the limit"
    else:
        reason = f"not CSV: {error}"
    return Fault(source.name, line.number, "not CSV", reason, line.data)
