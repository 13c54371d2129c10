"""A file → its text as UTF-8 bytes, decompressed, in constant memory.

In: a path and a codec. Out: a buffered stream, or lines from it, each with its number and
byte offset. Invariant: memory is bounded whatever the file holds: a line longer than the
limit is passed over without being kept, and no decompression step expands without bound.
All text before the place where a compressed file breaks off is delivered first.
"""

import bz2
import codecs
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import zstandard

Codec = Literal["gzip", "zstd", "bz2", "xz"]

BUFFER_BYTES = 1 << 18
#: Compressed bytes per step. Small, since zstd can expand 4 bytes to 128 KiB.
STEP_BYTES = 1 << 12
DECOMPRESSORS: dict[Codec, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "zstd": lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
    "bz2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}
CODEC_ERRORS = (zlib.error, zstandard.ZstdError, OSError, lzma.LZMAError, EOFError)
UTF16_32 = [
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]


class Damaged(Exception):
    """A compressed file breaks off or is corrupt; the text before that place was delivered."""


class Line(NamedTuple):
    """A line of a file, without its line break; `data` is cut where `too_long`."""

    number: int
    offset_bytes: int
    data: bytes
    too_long: bool = False


class Pump(io.RawIOBase):
    """A raw stream over an iterator of byte chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._damage: Damaged | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._rest:
            chunk = self._next()
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _next(self) -> bytes | None:
        """The next chunk; damage once met is raised again by every later read."""
        if self._damage is not None:
            raise self._damage
        try:
            return next(self._chunks, None)
        except Damaged as damage:
            self._damage = damage
            raise


def open_text(path: Path, codec: Codec | None) -> io.BufferedReader:
    """The file's text as UTF-8, without a byte-order mark."""
    raw = cast(io.BufferedReader, path.open("rb", buffering=BUFFER_BYTES))
    stream = raw if codec is None else _buffered(_decompress(raw, codec))
    start = stream.peek(4)[:4]
    if start.startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
        return stream
    for mark, encoding in UTF16_32:
        if start.startswith(mark):
            stream.read(len(mark))
            return _buffered(_transcode(stream, encoding))
    return stream


def lines(stream: io.BufferedReader, limit_bytes: int) -> Iterator[Line]:
    """The lines of a stream; of one longer than the limit only a start is kept."""
    offset = 0
    for number, data in enumerate(iter(lambda: stream.readline(limit_bytes + 1), b""), start=1):
        size = len(data)
        if size <= limit_bytes or data.endswith(b"\n"):
            yield Line(number, offset, data.rstrip(b"\r\n"))
        else:
            start = data[:8192]
            del data
            size += _skip_line(stream)
            yield Line(number, offset, start, too_long=True)
        offset += size


def _skip_line(stream: io.BufferedReader) -> int:
    skipped = 0
    while data := stream.readline(BUFFER_BYTES):
        skipped += len(data)
        if data.endswith(b"\n"):
            break
    return skipped


def _buffered(chunks: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(Pump(chunks), buffer_size=BUFFER_BYTES)


def _decompress(file: io.BufferedReader, codec: Codec) -> Iterator[bytes]:
    """The text of all members of a compressed file, one after the other."""
    with file:
        member = DECOMPRESSORS[codec]()
        begun = False
        while data := file.read(STEP_BYTES):
            while data:
                yield from _step(member, data, codec)
                begun, data = not member.eof, b""
                if member.eof:
                    data = member.unused_data.lstrip(b"\0")  # tapes and dd pad with zeros
                    member = DECOMPRESSORS[codec]()
        if begun:
            raise Damaged(f"the {codec} data breaks off")


def _step(member: Any, data: bytes, codec: Codec) -> Iterator[bytes]:
    """The text of some compressed bytes; where they are corrupt, what gzip has before that."""
    before = member.copy() if codec == "gzip" else None
    try:
        yield member.decompress(data)
    except CODEC_ERRORS as error:
        if before is not None:
            yield from _until_corrupt(before, data)
        raise Damaged(f"the {codec} data is corrupt ({error})") from error


def _until_corrupt(member: Any, data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        try:
            yield member.decompress(data[at : at + 1])
        except CODEC_ERRORS:
            return


def _transcode(stream: io.BufferedReader, encoding: str) -> Iterator[bytes]:
    """UTF-16 or UTF-32 as UTF-8; what cannot be decoded stays invalid, for the row to fail."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    with stream:
        while chunk := stream.read1(BUFFER_BYTES):
            yield _utf8(decoder, chunk, final=False)
        yield _utf8(decoder, b"", final=True)


def _utf8(decoder: codecs.IncrementalDecoder, chunk: bytes, final: bool) -> bytes:
    try:
        return decoder.decode(chunk, final).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Damaged(f"the text is not {error.encoding} as its first bytes say") from error
