"""The collector: what the workers committed, from the run's Redis stream to Parquet files.

    python -m workers.collector RUN_NAME --directory DIR

In: the stream `completions` of a run. Out: its archive (`workers/archive.py`).

One round: read entries, make rows of them, and when enough wait (or the first has waited long
enough) store them, and only then delete their entries from the stream. So Redis holds an entry
until its row is durable. A crash between the two leaves rows on disk whose entries are still
in the stream; a start (and a return of Redis) compares the entries with the files that overlap
them and passes over those that are there. Entries are deleted one by one, not by XTRIM, and an
id that is lower than one on disk proves nothing: after a loss of data, and with a clock set
back, Redis gives lower ids to new entries.

Invariants: every entry is one row, in `completions/` or `rejects/`, whatever dies and when; a
prompt is one row in `completions/`. Memory is bounded: nothing is read while a batch is full.
Whether a completion is any good, it does not know.
"""

import argparse
import errno
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from fleet import broker
from fleet.errors import FleetError, LedgerUnavailable
from fleet.keys import Keys
from fleet.ledger import Ledger
from fleet.log import setup
from fleet.settings import Settings
from workers.archive import Archive
from workers.batch import Batch, Limits
from workers.parts import StreamId, parse_id
from workers.rows import Identity, Unreadable, read_entry
from workers.trouble import Trouble
from workers.verifier import Verifier

log = logging.getLogger(__name__)

#: How long a read waits for entries; also how late a signal may be noticed.
BLOCK_MS = 250
#: Aimed size of one reply of Redis, and the most entries asked for.
READ_BYTES = 8 * 1024 * 1024
READ_ENTRIES = 1000
DELETE_ENTRIES = 1000

Entry = tuple[bytes, dict[bytes, bytes]]


class Collector:
    """Moves one run's stream into its archive, which is locked and open."""

    def __init__(
        self,
        client: redis.Redis,
        stream: str,
        archive: Archive,
        limits: Limits,
        stop: threading.Event,
        verifier: Verifier | None = None,
    ) -> None:
        self._client: Any = client
        self._verifier = verifier
        self._stream = stream
        self._archive = archive
        self._limits = limits
        self._stop = stop
        self._batch = Batch()
        self._cursor = b"0-0"
        self._entry_bytes = READ_BYTES / 64
        #: Up to this id an entry may be on disk already; which ones are, by what they say.
        self._boundary: StreamId = (0, 0)
        self._written: set[Identity] = set()
        self._warned = False

    def run(self) -> None:
        """Collect until asked to stop and the stream is empty.

        Raises:
            LedgerUnavailable: asked to stop while Redis was down.
            FleetError: asked to stop while the disk was full.
        """
        outage = Trouble("Redis does not answer, the collector waits", self._stop)
        while True:
            stopping = self._stop.is_set()
            try:
                self._begin()
                outage.over()
                self._follow()
                return
            except redis.RedisError as error:
                self._store()  # safe on disk, if not yet gone from the stream
                if stopping:
                    raise LedgerUnavailable(
                        f"Redis does not answer: {error}; entries may be left in the stream "
                        f"{self._stream}: start the collector again when it is back"
                    ) from None
                outage.wait(str(error))

    def _begin(self) -> None:
        """Read from the start of the stream, aware of what is on disk."""
        self._batch = Batch()
        self._cursor, self._warned = b"0-0", False
        first = self._client.xrange(self._stream, count=1)
        self._boundary = self._archive.newest()
        self._written = self._archive.written_since(parse_id(first[0][0])) if first else set()

    def _follow(self) -> None:
        while True:
            stopping = self._stop.is_set()
            count = max(1, min(READ_ENTRIES, int(READ_BYTES / self._entry_bytes)))
            entries = self._read(count, wait=not stopping)
            for entry_id, fields in entries:
                self._take(entry_id, fields)
                if self._limits.reached(self._batch):
                    self._flush()
            if stopping and len(entries) < count:
                self._flush()
                return
            if self._limits.due(self._batch):
                self._flush()
            if not entries and not self._batch.entry_ids and self._client.xlen(self._stream):
                self._begin()  # entries behind the cursor: Redis was emptied, its clock set back

    def _read(self, count: int, wait: bool) -> list[Entry]:
        block = BLOCK_MS if wait else None
        reply = self._client.xread({self._stream: self._cursor}, count=count, block=block)
        if not reply:
            return []
        entries: list[Entry] = reply[0][1]
        size = sum(len(value) for _, fields in entries for value in fields.values())
        self._entry_bytes = max(1.0, size / len(entries))
        return entries

    def _take(self, entry_id: bytes, fields: dict[bytes, bytes]) -> None:
        self._cursor = entry_id
        self._batch.cover(entry_id)
        stream_id = parse_id(entry_id)
        try:
            record = read_entry(fields)
        except Unreadable as error:
            self._set_aside(entry_id, fields, str(error))
            return
        if record.torn:
            self._set_aside(entry_id, fields, str(record.reason))
        if stream_id <= self._boundary and record.identity in self._written:
            return
        folder, row = self._archive.place(record)
        if stream_id <= self._boundary and not self._warned:
            self._warn_if_behind(stream_id, folder)
        self._batch.add(folder, stream_id, row, record.text_bytes)
        if self._verifier and record.reason is None:
            self._verifier.look(record)

    def _set_aside(self, entry_id: bytes, fields: dict[bytes, bytes], why: str) -> None:
        self._archive.set_aside(self._batch, entry_id, fields, why)
        log.error(
            "stream entry %s cannot be read, its bytes go to rejects/unreadable.jsonl: %s",
            entry_id.decode(),
            why,
            extra={"action": "set aside"},
        )

    def _warn_if_behind(self, stream_id: StreamId, folder: Path) -> None:
        newest = self._archive.newest(folder)
        if stream_id > newest:
            return
        self._warned = True
        log.warning(
            "stream entry %d-%d is new, yet its id is below %d-%d, the last in %s: Redis has lost "
            "data or its clock went back; such entries are told by their content and kept",
            *stream_id,
            *newest,
            folder,
            extra={"action": "collect"},
        )

    def _flush(self) -> None:
        """Store the batch, then delete its entries."""
        if not self._batch.entry_ids:
            return
        self._store()
        ids = self._batch.entry_ids
        for start in range(0, len(ids), DELETE_ENTRIES):
            self._client.xdel(self._stream, *ids[start : start + DELETE_ENTRIES])
        stored = self._batch.stored
        self._batch = Batch()
        log.info(
            "%d rows in %d files, %.1f MB; %d entries left in the stream",
            sum(part.rows for part in stored),
            len(stored),
            sum(part.file_bytes for part in stored) / 1e6,
            self._client.xlen(self._stream),
            extra={"action": "collect"},
        )

    def _store(self) -> None:
        """Make the batch durable, however long the disk is full."""
        trouble = Trouble("the disk does not take the completions, the collector waits", self._stop)
        while True:
            stopping = self._stop.is_set()
            try:
                self._archive.store(self._batch)
                trouble.over()
                return
            except OSError as error:
                if stopping:
                    raise FleetError(
                        f"{error}; what is not on disk is still in the stream {self._stream}: "
                        "make room and start the collector again"
                    ) from error
                trouble.wait(f"{error}; {_advice(error)} (nothing is lost, it stays in Redis)")


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room there"
    return "check the disk and its permissions"


def await_lock(archive: Archive, stop: threading.Event) -> bool:
    """Wait to be the run's one collector; false when asked to stop before that."""
    said = False
    while holder := archive.lock():
        if not said:
            said = True
            log.warning(
                "another collector (process %d) serves %s; this one waits to take over",
                holder,
                archive.completions,
                extra={"action": "wait"},
            )
        if stop.wait(0.2):
            return False
    return True


def collect(client: redis.Redis, run: str, directory: Path, limits: Limits) -> None:
    """Collect a run until SIGTERM or SIGINT, then what is left in its stream.

    Raises:
        FleetError: see `Collector.run`, or a file in the run's directory cannot be read.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    archive = Archive(directory)
    if not await_lock(archive, stop):
        return
    archive.open()
    log.info("collecting run %s into %s; %d prompts are there", run, directory, len(archive))
    verifier = Verifier(Ledger(client, run))
    Collector(client, Keys(run).completions, archive, limits, stop, verifier).run()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.collector", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", metavar="RUN_NAME", help="name of the run, as in its run file")
    parser.add_argument("--directory", type=Path, required=True, help="directory of the run")
    default = Limits()
    parser.add_argument(
        "--flush-s", type=float, default=default.flush_s, help="longest wait for a file (60)"
    )
    parser.add_argument(
        "--flush-rows", type=int, default=default.rows, help="most rows that wait (20000)"
    )
    options = parser.parse_args(arguments)
    limits = Limits(flush_s=options.flush_s, rows=options.flush_rows)
    try:
        settings = Settings.from_environment()
        setup(settings.log_level, settings.secrets())
        collect(_client(settings, options.directory), options.run, options.directory, limits)
    except FleetError as error:
        print(f"collector: {error}", file=sys.stderr)
        return 2
    return 0


def _client(settings: Settings, directory: Path) -> redis.Redis:
    """The Redis of the environment, else the one embedded in the run's directory."""
    url = settings.redis_url.reveal() or f"unix://{broker.socket_path(directory)}"
    return broker.connect(url)


if __name__ == "__main__":
    sys.exit(main())
