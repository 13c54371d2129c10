"""JSON texts → rows: JSON Lines, and arrays of any size in constant memory.

In: a `Source`. Out: `Row` or `Fault` for each line or element. Invariant: one broken line or
element costs only itself; the ones around it are delivered (an element whose brackets do
not match takes those after it along, since nothing then tells where it ends).

An array is cut into elements by a scan for brackets, commas and strings, and each element is
parsed alone. An incremental parser would build the same objects slower, and give up the
whole file at the first mistake.
"""

import json
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from fleet.errors import InputError
from producer.json_cut import Cutter
from producer.rows import Fault, Row
from producer.sources import Source
from producer.streams import Codec, Line, lines, open_text

DECODER = msgspec.json.Decoder()
NAME_JSONL = "if each line is a row, name the file .jsonl"


def json_lines(source: Source, codec: Codec | None, limit_bytes: int) -> Iterator[Row | Fault]:
    """One row a line; blank lines are not rows."""
    with open_text(source.path, codec) as stream:
        for line in lines(stream, limit_bytes):
            if line.too_long:
                yield too_long(source, line, limit_bytes, "line")
            elif line.data.strip():
                yield _parse(source, line)


def json_document(source: Source, codec: Codec | None, limit_bytes: int) -> Iterator[Row | Fault]:
    """The elements of an array, or of the list in an object; else the object is the one row."""
    with open_text(source.path, codec) as stream:
        cutter = Cutter(stream, limit_bytes)
        start = cutter.peek()
        cutter.take()
        if start == b"[":
            yield from _elements(source, cutter)
        elif start == b"{" and (yield from _members(source, cutter)):
            pass
        else:
            yield _whole(source, codec, limit_bytes)
            return
        if cutter.peek():
            raise InputError(
                f"{source.path}: text goes on after the end of the JSON value; {NAME_JSONL}"
            )


def _elements(source: Source, cutter: Cutter) -> Iterator[Row | Fault]:
    """The elements of the array that was just entered."""
    for number, piece in enumerate(cutter.pieces(), start=1):
        line = Line(number, 0, piece.data)
        if piece.end == b"":
            yield _cut_off(source, line)
        elif piece.too_long:
            yield too_long(source, line, cutter.limit_bytes, "element")
        elif piece.data.strip() or piece.end != b"]":  # `[]` and a last comma are no rows
            yield _parse(source, line)


def _members(source: Source, cutter: Cutter) -> Generator[Row | Fault, None, bool]:
    """The rows of the list of objects in the object just entered; returns whether it has one."""
    found: str | None = None
    while (key := cutter.key()) is not None:
        if cutter.peek() == b"[":
            cutter.take()
            if cutter.peek() != b"{":
                deque(cutter.pieces(), maxlen=0)  # a list of something else
            elif found:
                raise InputError(
                    f"{source.path}: the object has two lists of objects, `{found}` and "
                    f"`{key}`; keep one, or write the rows as an array"
                )
            else:
                rows = _elements(source, cutter)
                first = next(rows)
                if isinstance(first, Row) and _is_message(first.value):
                    return False  # the list is a conversation, and the object a row
                found = key
                yield first
                yield from rows
        if cutter.piece().end != b",":
            break
    return found is not None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or {"from", "value"} <= value.keys())


def _whole(source: Source, codec: Codec | None, limit_bytes: int) -> Row | Fault:
    """The file as one row."""
    with open_text(source.path, codec) as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        return too_long(source, Line(1, 0, data[:8192]), limit_bytes, "object")
    row = _parse(source, Line(1, 0, data.strip()))
    if isinstance(row, Fault):
        raise InputError(f"{source.path}: {row.reason}; {NAME_JSONL}")
    return row


def _parse(source: Source, line: Line) -> Row | Fault:
    try:
        return Row(source.name, line.number, DECODER.decode(line.data), line.data)
    except (ValueError, RecursionError):
        return _second_look(source, line)


def _second_look(source: Source, line: Line) -> Row | Fault:
    """What the fast parser refused: NaN and odd numbers are taken, the rest gets its reason."""
    try:
        return Row(source.name, line.number, json.loads(line.data.decode()), line.data)
    except UnicodeDecodeError as error:
        return undecodable(source, line, error)
    except RecursionError:
        kind, reason = "not JSON", "the JSON is nested too deeply"
    except json.JSONDecodeError as error:
        kind, reason = "not JSON", f"not JSON: {error.msg} at character {error.pos + 1}"
        if b"\0" in line.data:
            kind, reason = "NUL bytes", f"holds {line.data.count(0):,} NUL bytes; {reason}"
    except ValueError as error:
        kind, reason = "not JSON", f"not JSON: {error}"
    return Fault(source.name, line.number, kind, reason, line.data)


def _cut_off(source: Source, line: Line) -> Fault:
    reason = "the file ends within the array: it was cut; the elements before this were read"
    return Fault(source.name, line.number, "file truncated", reason, line.data)


def too_long(source: Source, line: Line, limit_bytes: int, what: str) -> Fault:
    reason = f"the {what} is longer than {limit_bytes:,} bytes"
    return Fault(source.name, line.number, "too long", reason, line.data)


def undecodable(source: Source, line: Line, error: UnicodeDecodeError) -> Fault:
    place = f"byte {error.start + 1:,} of the line"
    if line.offset_bytes:
        place += f" (byte {line.offset_bytes + error.start + 1:,} of the text)"
    reason = f"not UTF-8: 0x{error.object[error.start]:02x} at {place}"
    return Fault(source.name, line.number, "not UTF-8", reason, line.data)
