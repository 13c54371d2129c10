"""The feeder: keeps a bounded window of tasks queued until every dataset has come to its end.

In: a run whose prompts are frozen. Out: task messages. Invariant: everything it knows is on
the ledger, so it can be killed at any moment and started again, or run twice at once; a task
message is sent only for a prompt that the ledger has just marked as queued.
"""

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

from fleet.app import QUEUE, TASK
from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from fleet.snapshot import DatasetCounts, Snapshot
from fleet.transitions import Fed
from producer.freeze import iter_chains
from producer.frozen import Prompt
from producer.payload import chain_payload

log = logging.getLogger(__name__)

#: Tasks queued for each request that may be in flight: enough that no worker waits for the feeder.
WINDOW = 2
MIN_WINDOW = 64
#: A queued prompt is sent again when the queue has been empty for this long.
LOST_AFTER_S = 10.0
#: Share of Redis's `maxmemory` above which nothing new is fed.
MEMORY_LIMIT = 0.8
MEMORY_CHECK_S = 2.0
#: Completions not yet on disk above which nothing new is fed: the collector is stuck.
LONGEST_BACKLOG = 100_000
BATCH = 500
#: Prompts looked at together while all of them are done, and the longest that one round takes.
LOOK_AHEAD = 5000
ROUND_S = 1.0

Chain = tuple[int, list[Prompt]]


@dataclass
class Source:
    """A frozen dataset and the place in it."""

    name: str
    path: Path
    #: Rows to feed: all of them, or `--limit`.
    rows: int
    row: int = 0
    chains: "Iterator[Chain] | None" = None


class Feeder:
    """Feeds one run. `step` does one round; it never blocks for long."""

    def __init__(
        self, config: RunConfig, ledger: Ledger, app: Celery, rows: dict[str, int]
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._app = app
        self._window = max(MIN_WINDOW, WINDOW * config.run.concurrency)
        self._run = config.run.name
        self._sources = [
            Source(name, config.directory / "prompts" / f"{name}.parquet", count)
            for name, count in rows.items()
        ]
        self._memory_checked_at = 0.0
        self._memory_short = False
        self.draining = False

    def step(self) -> Snapshot:
        """Send what there is room for. Returns the run as it was before."""
        snapshot = self._ledger.snapshot()
        if self.draining:
            self._ledger.resend(0, 0, 0)  # takes back the claims of workers that died
            return snapshot
        want = self._window - snapshot.queued
        ids = self._ledger.resend(max(want, 0), self._lost_after_s())
        self._send(ids)
        # What backs off counts too: while a provider throttles, the ledger does not fill up.
        want -= len(ids) + snapshot.delayed
        if (
            want > 0
            and not snapshot.paused
            and not snapshot.cap_reached
            and self._has_memory(snapshot)
        ):
            self._send(self._feed(snapshot, want))
        return snapshot

    def finished(self, snapshot: Snapshot) -> bool:
        """Every dataset has come to its end and nothing is under way."""
        if self.draining:
            return snapshot.in_flight == 0 or snapshot.workers == 0
        if snapshot.in_flight or snapshot.paused:
            return False
        over = {d.name for d in snapshot.datasets if d.cancelled or d.ended}
        if snapshot.cap_reached:
            return True
        cursors = {d.name: d.cursor for d in snapshot.datasets}
        unread = {s.name for s in self._sources if cursors.get(s.name, 0) < s.rows}
        if unread - over:
            return False
        return not set(self._ledger.live()) - over

    def _feed(self, snapshot: Snapshot, want: int) -> list[str]:
        """New prompts of all datasets with room, interleaved."""
        datasets = {d.name: d for d in snapshot.datasets}
        open_sources = [s for s in self._sources if self._has_room(s, datasets[s.name])]
        if not open_sources:
            return []
        share = -(-want // len(open_sources))
        fed = [self._feed_one(s, datasets[s.name], share) for s in open_sources]
        rounds = itertools.zip_longest(*fed)
        return [prompt_id for one in rounds for prompt_id in one if prompt_id is not None]

    @staticmethod
    def _has_room(source: Source, dataset: DatasetCounts) -> bool:
        unread = max(source.row, dataset.cursor) < source.rows
        return unread and not dataset.cancelled and not dataset.ended

    def _feed_one(self, source: Source, dataset: DatasetCounts, share: int) -> list[str]:
        """Feed up to `share` new prompts of one dataset; those that are done are passed over."""
        most = share
        if dataset.budget_tokens:
            # Near the budget, what its room is expected to take; the ledger decides.
            most = min(share, max(0, int(dataset.room_tokens / dataset.mean_tokens)) + 1)
        if source.chains is None or dataset.cursor > source.row:
            self._open(source, max(source.row, dataset.cursor))
        sent: list[str] = []
        size, ends_at = min(most, BATCH), time.monotonic() + ROUND_S
        while len(sent) < most and source.row < source.rows and time.monotonic() < ends_at:
            chains = self._new(self._next(source, size))
            left = most - len(sent)
            if len(chains) > left:
                self._open(source, chains[left][0])
            batch = [as_fed(first, chain) for first, chain in chains[:left]]
            accepted = self._ledger.feed(source.name, batch, source.row)
            sent += [fed.prompt_id for fed, ok in zip(batch, accepted, strict=False) if ok]
            if len(accepted) < len(batch):
                self._open(source, chains[len(accepted)][0])
                break
            # Through what is done at full speed, then in steps of what is wanted.
            size = min(left, BATCH) if chains else LOOK_AHEAD
        return sent

    @staticmethod
    def _open(source: Source, row: int) -> None:
        source.row = row
        source.chains = iter_chains(source.path, row)

    @staticmethod
    def _next(source: Source, most: int) -> list[Chain]:
        """The next chains, by the row that each begins at."""
        found: list[Chain] = []
        while len(found) < most and source.row < source.rows and source.chains is not None:
            first, chain = next(source.chains)
            found.append((first, chain))
            source.row = first + len(chain)
        return found

    def _new(self, chains: list[Chain]) -> list[Chain]:
        """Without those whose first turn is done."""
        done = self._ledger.are_done([chain[0].prompt_id for _, chain in chains])
        return [chain for chain, is_done in zip(chains, done, strict=True) if not is_done]

    def _send(self, prompt_ids: list[str]) -> None:
        if not prompt_ids:
            return
        with self._app.producer_pool.acquire(block=True) as producer, producer.batch(BATCH):
            for prompt_id in prompt_ids:
                self._app.send_task(
                    TASK,
                    (self._run, prompt_id),
                    producer=producer,
                    argsrepr=f"({self._run}, {prompt_id})",
                    kwargsrepr="{}",
                )

    def _lost_after_s(self) -> float:
        """A message can only be lost when the queue is empty and its prompt still queued."""
        return 0.0 if self._ledger.client.llen(QUEUE) else LOST_AFTER_S

    def _has_memory(self, snapshot: Snapshot) -> bool:
        """Redis has memory left, and the collector keeps up."""
        now = time.monotonic()
        if now - self._memory_checked_at > MEMORY_CHECK_S:
            self._memory_checked_at = now
            info = self._ledger.client.info("memory")
            limit = info.get("maxmemory") or 0
            short = bool(limit) and info["used_memory"] > MEMORY_LIMIT * limit
            if short and not self._memory_short:
                log.warning(
                    "feeding stops: Redis uses %d of %d MB; is the collector running?",
                    info["used_memory"] >> 20,
                    limit >> 20,
                )
            self._memory_short = short
        return not self._memory_short and snapshot.backlog < LONGEST_BACKLOG


def as_fed(first: int, chain: list[Prompt]) -> Fed:
    """A chain as the ledger takes it; `first` is its row."""
    return Fed(chain[0].prompt_id, chain_payload(chain), first + len(chain))
