"""A dataset's paths and globs → the files to read, in a fixed order.

In: patterns as written in the run file and the folder they are relative to. Out: `Source`s,
each file once. Invariant: the same files give the same list on every machine, since row
order is never to change. It looks at names only; `formats.py` looks inside.
"""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fleet.errors import InputError
from producer.formats import is_known_name

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class Source(NamedTuple):
    """A file of rows."""

    path: Path
    #: How the file is called in `source` columns and messages: relative to the run file.
    name: str
    size_bytes: int
    mtime_ns: int


def resolve(patterns: list[str], base: Path) -> list[Source]:
    """The files that the patterns name, each once, in the order of the patterns, then of names.

    Raises:
        InputError: a pattern names nothing, or a file is empty or cannot be opened.
    """
    sources: dict[Path, Source] = {}
    for pattern in patterns:
        for path in _matches(pattern, base):
            resolved = path.resolve()
            if resolved not in sources:
                sources[resolved] = _source(path, resolved, base)
    return list(sources.values())


def _matches(pattern: str, base: Path) -> Iterator[Path]:
    if URL.match(pattern):
        raise InputError(f"{pattern}: only local files are read; download it and name the file")
    path = base / Path(pattern).expanduser()
    if path.is_dir():
        yield from _folder(path)
    elif os.path.lexists(path) or not glob.has_magic(pattern):
        yield path
    else:
        yield from _globbed(str(Path(pattern).expanduser()), base)


def _globbed(pattern: str, base: Path) -> Iterator[Path]:
    names = sorted(glob.glob(pattern, root_dir=base, recursive=True))
    files = [base / name for name in names if not (base / name).is_dir()]
    if not files:
        raise InputError(
            f"{pattern}: no file matches in {base}; patterns are relative to the run file"
        )
    yield from files


def _folder(folder: Path) -> Iterator[Path]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in files if not _hidden(path.relative_to(folder))]
    files = [path for path in files if is_known_name(path.name)]
    if not files:
        raise InputError(
            f"{folder}: the folder holds no JSONL, JSON, CSV, TSV or Parquet file; "
            "name the files themselves if theirs end otherwise"
        )
    yield from files


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _source(path: Path, resolved: Path, base: Path) -> Source:
    name = os.path.relpath(path, base) if _below(path, base) else str(path)
    try:
        with resolved.open("rb"):
            status = resolved.stat()
    except FileNotFoundError:
        raise InputError(f"{name}: no such file in {base}; paths are relative to it") from None
    except OSError as error:
        raise InputError(
            f"{name}: cannot be opened ({error.strerror}); check its rights"
        ) from error
    if status.st_size == 0:
        raise InputError(f"{name}: the file is empty; write it again or take it off `path`")
    return Source(resolved, name, status.st_size, status.st_mtime_ns)


def _below(path: Path, base: Path) -> bool:
    """Whether the path was written relative to the base (`../` may lead out of it again)."""
    return path.parts[: len(base.parts)] == base.parts
