"""Cuts a JSON text into its elements without parsing it.

In: a stream of UTF-8 bytes. Out: the pieces between the commas of one level. Invariant: at
most the limit and one chunk are in memory, however long an element is. It looks only at
brackets, commas and strings; whether a piece is JSON is for its parser to say.
"""

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

from producer.streams import BUFFER_BYTES, Damaged

#: A whole string (no group), a bracket or comma (group 1), or a string that is cut (group 2).
TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|([\[\]{},])|(")', re.DOTALL)
KEY = re.compile(rb'\s*"((?:[^"\\]++|\\.)*+)"\s*:', re.DOTALL)
SPACE = re.compile(rb"[ \t\r\n]*")
OPEN, CLOSE, COMMA = frozenset(b"[{"), frozenset(b"]}"), ord(",")
KEY_LIMIT_BYTES = 1 << 16
EXCERPT_BYTES = 1 << 13


class Piece(NamedTuple):
    """The text up to a comma or bracket of this level."""

    data: bytes
    #: `,`, `]` or `}`; empty where the text ends before any of them.
    end: bytes
    #: Longer than the limit: `data` is only its start.
    too_long: bool = False


class Cutter:
    """A position in a JSON text."""

    def __init__(self, stream: io.BufferedReader, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._stream = stream
        self._buffer = b""
        self._at = 0

    def peek(self) -> bytes:
        """The next byte that is not white space; empty at the end."""
        while True:
            self._at = SPACE.match(self._buffer, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._more(BUFFER_BYTES):
                return b""

    def take(self) -> None:
        """Step over the byte that `peek` showed."""
        self._at += 1

    def key(self) -> str | None:
        """Step over `"key":`; None if there is no such thing here."""
        while not (match := KEY.match(self._buffer, self._at)):
            if len(self._buffer) - self._at > KEY_LIMIT_BYTES or not self._more(BUFFER_BYTES):
                return None
        self._at = match.end()
        return match[1].decode("utf-8", "replace")

    def pieces(self) -> Iterator[Piece]:
        """The elements of the array that was just entered, up to its closing bracket."""
        while True:
            piece = self.piece()
            yield piece
            if piece.end in (b"]", b""):
                return

    def piece(self) -> Piece:
        """Step over the text up to the next comma or closing bracket of this level."""
        start = None  # of an element that is too long
        scan, depth = self._at, 0
        while True:
            scan, depth, end = self._scan(scan, depth)
            if end is not None:
                if start is None and end - self._at > self.limit_bytes:
                    start = self._buffer[self._at : self._at + EXCERPT_BYTES]
                data = self._buffer[self._at : end] if start is None else start
                self._at = end + 1
                return Piece(data, self._buffer[end : end + 1], start is not None)
            held = len(self._buffer) - self._at
            if held > self.limit_bytes or start is not None:
                start = start or self._buffer[self._at : self._at + EXCERPT_BYTES]
                self._buffer, self._at = _open_string(self._buffer[scan:]), 0
                scan = held = 0
            else:
                scan -= self._at
            if not self._more(max(BUFFER_BYTES, held)):
                rest = self._buffer[self._at :] if start is None else start
                self._at = len(self._buffer)
                return Piece(rest, b"", start is not None)

    def _scan(self, scan: int, depth: int) -> tuple[int, int, int | None]:
        """Look for the end of this level: (where to go on, depth there, end if found)."""
        buffer = self._buffer
        for match in TOKEN.finditer(buffer, scan):
            if match.lastindex is None:
                continue
            at = match.start()
            if match.lastindex == 2:
                return at, depth, None
            byte = buffer[at]
            if byte in OPEN:
                depth += 1
            elif depth == 0:
                return at, depth, at
            elif byte in CLOSE:
                depth -= 1
        return len(buffer), depth, None

    def _more(self, size: int) -> bool:
        """Drop what was stepped over, and read at least `size` bytes more if there are any."""
        chunks = [self._buffer[self._at :]]
        self._at = 0
        read = 0
        try:
            while read < size and (chunk := self._stream.read1(max(size - read, BUFFER_BYTES))):
                chunks.append(chunk)
                read += len(chunk)
        except Damaged:
            if not read:  # else it is raised again by the next read
                raise
        self._buffer = b"".join(chunks)
        return read > 0


def _open_string(rest: bytes) -> bytes:
    """What of an unfinished string must stay to find its end: the quote and a last backslash."""
    if not rest:
        return b""
    backslashes = len(rest) - len(rest.rstrip(b"\\"))
    return b'"' + b"\\" * (backslashes % 2)
