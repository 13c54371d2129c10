"""A file being made: claimed by one process, whole or absent.

Invariants: the file stands under its name only when its bytes are on the disk; of two processes
that want to make it, one does. The claim is a lock on the unfinished file, so it ends with the
process that has it, and what a dead one left is written over.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gpu_stage.files import sync


@contextmanager
def claim(path: Path) -> Iterator[BinaryIO | None]:
    """The unfinished file of `path`, empty; None while another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(path)
    with os.fdopen(os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        if not _lock(file) or not _is(file, temporary):
            yield None
            return
        try:
            file.truncate(0)
            yield file
        finally:
            if _is(file, temporary):  # not written, or not to its end
                temporary.unlink()


def claimed(path: Path) -> bool:
    """Whether a process is making this file."""
    try:
        with temporary_of(path).open("rb") as file:
            return not _lock(file)
    except FileNotFoundError:
        return False


def temporary_of(path: Path) -> Path:
    """Readers skip names with a leading dot."""
    return path.with_name(f".{path.name}.tmp")


def finish(file: BinaryIO, path: Path) -> None:
    """Give a claimed file its name, once its bytes are on the disk."""
    file.flush()
    os.fsync(file.fileno())
    temporary_of(path).replace(path)
    sync(path.parent)


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(file: BinaryIO, path: Path) -> bool:
    """Whether `path` is still the open file: it may have got its final name meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
