"""A feeder of a few prompts: so many of each dataset, spread evenly over its rows.

What it buys is the run's: the run's own feeder passes over what is done. It leaves the datasets'
cursors where they are.
"""

import itertools
import logging

from celery import Celery

from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from fleet.snapshot import Snapshot
from fleet.transitions import Fed
from producer.feeder import Chain, Feeder, as_fed
from producer.freeze import iter_chains

log = logging.getLogger(__name__)


class SampleFeeder(Feeder):
    """Feeds `per_dataset` prompts of each dataset, and sends no others."""

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        app: Celery,
        rows: dict[str, int],
        per_dataset: int,
    ) -> None:
        super().__init__(config, ledger, app, rows)
        #: The turns of each chain of the sample, by dataset.
        self._turns: dict[str, list[str]] = {}
        self._left = {s.name: self._sample(s.name, s.rows, per_dataset) for s in self._sources}

    def finished(self, snapshot: Snapshot) -> bool:
        """Nothing of the sample is left to feed or under way."""
        if self.draining:
            return super().finished(snapshot)
        if snapshot.in_flight or snapshot.paused:
            return False
        if snapshot.cap_reached:
            return True
        over = {d.name for d in snapshot.datasets if d.cancelled or d.ended}
        open_datasets = self._turns.keys() - over
        if any(self._left[name] for name in open_datasets):
            return False
        ids = [prompt_id for name in open_datasets for prompt_id in self._turns[name]]
        return "live" not in self._ledger.outcomes(ids)

    def _resend(self, most: int) -> list[str]:
        ids = [prompt_id for part in self._turns.values() for prompt_id in part]
        return self._ledger.resend(most, self._lost_after_s(), only=ids) if ids else []

    def _feed(self, snapshot: Snapshot, want: int) -> list[str]:
        sent: list[str] = []
        for name, left in self._left.items():
            batch = left[:want]
            accepted = self._ledger.feed(name, batch, None)
            sent += [one.prompt_id for one, ok in zip(batch, accepted, strict=False) if ok]
            self._left[name] = left[len(accepted) :]
            if self._left[name] and not accepted and not snapshot.in_flight:
                log.warning(
                    "%s: its budget has no room for %d prompts of the pilot", name, len(left)
                )
                self._left[name] = []
        return sent

    def _sample(self, name: str, rows: int, count: int) -> list[Fed]:
        """The chains at or after evenly spread rows."""
        path = self._config.directory / "prompts" / f"{name}.parquet"
        wanted = [rows * n // count for n in range(min(count, rows))]
        found: list[Fed] = []
        for first, chain in itertools.takewhile(lambda c: _before(c, rows), iter_chains(path, 0)):
            if len(found) < len(wanted) and first >= wanted[len(found)]:
                found.append(as_fed(first, chain))
                self._turns.setdefault(name, []).extend(turn.prompt_id for turn in chain)
        return found


def _before(chain: Chain, rows: int) -> bool:
    return chain[0] < rows
