"""The completions of one run on disk: which are there, and how more are added.

In: batches of rows. Out: the part files of `completions/` and `rejects/completions/`, and
`rejects/unreadable.jsonl`. Invariants: one process at a time holds the archive of a run (a
lock that the kernel drops with its holder; all on one host, since network file systems may
not keep it); no prompt has two rows in `completions/`; `store` may fail or die at any step
and be called again. It does not know Redis.
"""

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.schemas import COMPLETIONS, REJECTS
from workers import parts
from workers.batch import Batch
from workers.parts import Part, StreamId
from workers.rows import Identity, Record

DUPLICATE = "duplicate of a prompt that is already on disk"


class Archive:
    """A run's completions on disk. Call `lock` until it is true, then `open`."""

    def __init__(self, directory: Path) -> None:
        self.completions = directory / "completions"
        self.rejects = directory / "rejects" / "completions"
        self._unreadable = directory / "rejects" / "unreadable.jsonl"
        # Not in `completions/`: polars reads every file of a folder that it is given.
        self._lock_file = directory / ".collector.lock"
        self._parts: list[Part] = []
        self._prompts: set[int] = set()
        #: Digests of the lines in `unreadable.jsonl`, and its length up to the last whole line.
        self._lines: set[bytes] = set()
        self._lines_bytes = 0

    def lock(self) -> int:
        """Try to become the one collector of the run; returns 0, or the process that is it."""
        parts.make_folder(self.completions)
        self._lock = self._lock_file.open("a+b")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            holder = self._lock.read(20)
            self._lock.close()
            return int(holder) if holder.isdigit() else -1
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()).encode())
        self._lock.flush()
        return 0

    def close(self) -> None:
        """Let another process have the archive."""
        self._lock.close()

    def open(self) -> None:
        """Remove what a crash left unfinished and learn which prompts are there.

        Raises:
            InputError: a part file cannot be read.
        """
        parts.make_folder(self.rejects)
        parts.sync_folder(self.completions)
        for folder in [*self.completions.glob("dataset=*"), self.rejects]:
            parts.remove_unfinished(folder)
            self._parts += parts.scan(folder)
        for part in self._parts:
            if part.path.parent != self.rejects:
                self._prompts.update(map(prompt_key, parts.prompt_ids(part)))
        self._open_unreadable()

    def __len__(self) -> int:
        """Prompts that have a row in `completions/`, those of unstored batches included."""
        return len(self._prompts)

    def place(self, record: Record) -> tuple[Path, tuple[Any, ...]]:
        """Where a record goes, and its row there. Of a prompt, the first record is the one."""
        reason = record.reason
        if reason is None:
            key = prompt_key(record.prompt_id)
            if key not in self._prompts:
                self._prompts.add(key)
                return self.completions / f"dataset={record.dataset}", record.values
            reason = DUPLICATE
        return self.rejects, (record.dataset, reason, *record.values)

    def newest(self, folder: Path | None = None) -> StreamId:
        """The highest stream id on disk, of one folder or of all."""
        ids = [p.last for p in self._parts if p.last and folder in (None, p.path.parent)]
        return max(ids, default=(0, 0))

    def written_since(self, first: StreamId) -> set[Identity]:
        """The responses on disk that may have come from stream entries `first` and later."""
        overlapping = [part for part in self._parts if part.last is None or part.last >= first]
        return {identity for part in overlapping for identity in parts.identities(part)}

    def set_aside(
        self, batch: Batch, entry_id: bytes, fields: Mapping[bytes, bytes], why: str
    ) -> None:
        """Keep the bytes of an entry that cannot be read, for a person to look at."""
        line = {
            "stream_id": entry_id.decode(),
            "reason": why,
            "fields_base64": {
                name.decode("utf-8", "backslashreplace"): base64.b64encode(value).decode()
                for name, value in fields.items()
            },
        }
        data = json.dumps(line).encode() + b"\n"
        if digest(data) not in self._lines:
            batch.lines.append(data)

    def store(self, batch: Batch) -> None:
        """Make a batch durable; after an error it may be called again with the same batch.

        Raises:
            OSError: the disk is full or fails.
        """
        self._append_unreadable(batch)
        for folder in list(batch.heaps):
            heap = batch.heaps[folder]
            schema = REJECTS if folder == self.rejects else COMPLETIONS
            span = heap.first, heap.last
            part = parts.write(folder, schema, heap.rows, span, heap.text_bytes)
            del batch.heaps[folder]
            batch.stored.append(part)
            self._parts.append(part)

    def _open_unreadable(self) -> None:
        if not self._unreadable.exists():
            return
        for line in self._unreadable.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                self._lines.add(digest(line))
                self._lines_bytes += len(line)

    def _append_unreadable(self, batch: Batch) -> None:
        if not batch.lines:
            return
        with self._unreadable.open("ab") as file:
            file.truncate(self._lines_bytes)  # half a line, if a crash or a full disk left one
            file.write(b"".join(batch.lines))
            file.flush()
            os.fsync(file.fileno())
        parts.sync_folder(self._unreadable.parent)
        self._lines_bytes += sum(map(len, batch.lines))
        self._lines.update(map(digest, batch.lines))
        batch.lines = []


def prompt_key(prompt_id: str) -> int:
    """A prompt_id as a number of 128 bits: a million take 80 MB."""
    try:
        if len(prompt_id) == 32:
            return int(prompt_id, 16)
    except ValueError:
        pass
    return int.from_bytes(digest(prompt_id.encode()))


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
