"""A batch: stream entries between being read and being on disk, and when it is full.

In: entry ids, rows by folder, lines of unreadable entries. Out: the same, to be stored whole.
Invariant: `entry_ids` covers every entry whose row is in the batch or was stored from it. It
does not know what a row means, nor how it is stored.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.parts import Part, StreamId


@dataclass(slots=True)
class Heap:
    """Rows on their way to one folder."""

    first: StreamId
    last: StreamId
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    text_bytes: int = 0


@dataclass(slots=True)
class Batch:
    """Stream entries on their way to disk. What `store` has made durable leaves the heaps."""

    #: Every entry that the batch covers; they may go from the stream once it is stored.
    entry_ids: list[bytes] = field(default_factory=list)
    heaps: dict[Path, Heap] = field(default_factory=dict)
    #: Lines for `unreadable.jsonl`.
    lines: list[bytes] = field(default_factory=list)
    stored: list[Part] = field(default_factory=list)
    rows: int = 0
    text_bytes: int = 0
    began_at: float = 0.0

    def cover(self, entry_id: bytes) -> None:
        if not self.entry_ids:
            self.began_at = time.monotonic()
        self.entry_ids.append(entry_id)

    def add(self, folder: Path, stream_id: StreamId, row: tuple[Any, ...], size: int) -> None:
        heap = self.heaps.setdefault(folder, Heap(stream_id, stream_id))
        heap.rows.append(row)
        heap.text_bytes += size
        heap.first, heap.last = min(heap.first, stream_id), max(heap.last, stream_id)
        self.rows += 1
        self.text_bytes += size


@dataclass(frozen=True)
class Limits:
    """When a batch is stored: at the first of these."""

    #: Seconds since the oldest entry in it was read.
    flush_s: float = 60.0
    rows: int = 20_000
    text_bytes: int = 64 * 1024 * 1024

    def reached(self, batch: Batch) -> bool:
        return batch.rows >= self.rows or batch.text_bytes >= self.text_bytes

    def due(self, batch: Batch) -> bool:
        return bool(batch.entry_ids) and time.monotonic() - batch.began_at >= self.flush_s
