"""What a file is: its compression and its row format, by name and by first bytes.

In: a path. Out: a `Format`. Invariant: the bytes win over the name, since suffixes lie: a
`.jsonl` that is gzip, a `.json` that holds JSON Lines, a download without any suffix.
"""

import re
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from fleet.errors import InputError
from producer.streams import Codec, Damaged, open_text

Kind = Literal["jsonl", "json", "csv", "tsv", "parquet"]

KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
CODECS: dict[str, Codec] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bz2",
    ".xz": "xz",
}
MAGIC: list[tuple[bytes, Codec]] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
]
PARQUET_MAGIC = b"PAR1"
#: How much of a file's text is looked at to tell JSON from JSON Lines.
HEAD_BYTES = 1 << 20
FORMATS = "JSONL, JSON, CSV, TSV or Parquet, plain or .gz, .zst, .bz2, .xz"


class Format(NamedTuple):
    """How to read a file."""

    kind: Kind
    codec: Codec | None


def is_known_name(name: str) -> bool:
    return _kind_by_name(name) is not None


def detect(path: Path) -> Format:
    """The format of a file.

    Raises:
        InputError: neither the name nor the content is of a known format.
    """
    with path.open("rb") as file:
        start = file.read(16)
    kind = _kind_by_name(path.name)
    if start.startswith(PARQUET_MAGIC):
        return Format("parquet", None)
    codec = next((codec for magic, codec in MAGIC if start.startswith(magic)), None)
    if kind == "parquet":
        what = f"is {codec}-compressed as a whole; unpack it" if codec else "is not Parquet"
        raise InputError(f"{path}: named as Parquet, but the file {what}; download it again")
    return Format(_text_kind(path, kind, codec), codec)


def _kind_by_name(name: str) -> Kind | None:
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    while suffixes and suffixes[-1] in CODECS:
        suffixes.pop()
    return KINDS.get(suffixes[-1]) if suffixes else None


def _text_kind(path: Path, kind: Kind | None, codec: Codec | None) -> Kind:
    head = _head(path, codec)
    if head.startswith(PARQUET_MAGIC):
        raise InputError(f"{path}: a compressed Parquet file; unpack it, Parquet compresses itself")
    text = head.lstrip()
    if kind in ("csv", "tsv") and not _is_json_object(text.partition(b"\n")[0]):
        return kind
    if text.startswith(b"{"):
        return "jsonl" if kind == "jsonl" else _object_kind(text)
    if text.startswith(b"["):
        return "jsonl" if kind == "jsonl" and not re.match(rb"\[\s*(\{|$)", text) else "json"
    if kind is None:
        raise InputError(
            f"{path}: unknown format; expected {FORMATS}, and a suffix that says which"
        )
    return kind


def _head(path: Path, codec: Codec | None) -> bytes:
    head = b""
    try:
        with open_text(path, codec) as stream:
            while len(head) < HEAD_BYTES and (chunk := stream.read1(HEAD_BYTES)):
                head += chunk
    except Damaged:
        pass  # the reader meets it again, and reports it after the rows before it
    return head


def _object_kind(text: bytes) -> Kind:
    """JSON Lines if the first line is an object of its own and another follows."""
    first, newline, rest = text.partition(b"\n")
    return "jsonl" if newline and rest.strip() and _is_json_object(first) else "json"


def _is_json_object(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        msgspec.json.decode(line, type=dict)
    except (ValueError, RecursionError):
        return False
    return True
