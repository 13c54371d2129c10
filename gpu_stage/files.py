"""Files that are on the disk when they have been written, and their hashes.

A caller gives a folder its final name once all in it is written; here is what it takes for that to
survive a loss of power.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import ConfigError

ROW_GROUP_ROWS = 1_000


def write_parquet(path: Path, table: pa.Table, repeating: list[str]) -> None:
    """Write a table, and make it durable.

    Args:
        repeating: columns whose values repeat; the others get no dictionary.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table, path, compression="zstd", row_group_size=ROW_GROUP_ROWS, use_dictionary=repeating
    )
    sync(path)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The hash of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A text file to write into, which gets its name at the end; an error leaves none.

    Raises:
        ConfigError: `path` is there already.
    """
    if path.exists():
        raise ConfigError(f"{path}: is there already; name another file or move it away")
    temporary = path.with_name(f".{path.name}.unfinished")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        sync(temporary)
        temporary.rename(path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which gets the name `path` at the end, complete and durable.

    One that was left by a process that died is emptied; an error leaves none.

    Raises:
        ConfigError: `path` is there already, or is being written by another process.
    """
    if path.exists():
        raise ConfigError(f"{path}: is there already; name another folder or move it away")
    temporary = path.parent / f".{path.name}.unfinished"
    temporary.mkdir(parents=True, exist_ok=True)
    with _alone(temporary, path):
        try:
            for left in temporary.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield temporary
            for folder, _, names in os.walk(temporary):
                for name in names:
                    sync(Path(folder) / name)
                sync(Path(folder))
            temporary.rename(path)
            sync(path.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def _alone(folder: Path, path: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"{path}: another process is writing it; wait for that one") from None
    finally:
        os.close(descriptor)
