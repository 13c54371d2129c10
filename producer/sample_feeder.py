"""A feeder of a few prompts: so many of each dataset, spread evenly over its rows.

What it buys is the run's: the run's own feeder passes over what is done. It leaves the datasets'
cursors where they are.
"""

import itertools

from celery import Celery

from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from fleet.snapshot import Snapshot
from fleet.transitions import Fed
from producer.feeder import Chain, Feeder, as_fed
from producer.freeze import iter_chains


class SampleFeeder(Feeder):
    """Feeds `per_dataset` prompts of each dataset."""

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        app: Celery,
        rows: dict[str, int],
        per_dataset: int,
    ) -> None:
        super().__init__(config, ledger, app, rows)
        self._left = {s.name: self._sample(s.name, s.rows, per_dataset) for s in self._sources}
        #: Every prompt of the sample.
        self.prompt_ids = [one.prompt_id for part in self._left.values() for one in part]

    def finished(self, snapshot: Snapshot) -> bool:
        """Nothing of the sample is left to feed or under way."""
        if self.draining:
            return super().finished(snapshot)
        if snapshot.in_flight or snapshot.paused:
            return False
        if snapshot.cap_reached:
            return True
        return not any(self._left.values()) and "live" not in self._ledger.outcomes(self.prompt_ids)

    def _feed(self, snapshot: Snapshot, want: int) -> list[str]:
        sent: list[str] = []
        for name, left in self._left.items():
            batch, self._left[name] = left[:want], left[want:]
            accepted = self._ledger.feed(name, batch, None)
            sent += [one.prompt_id for one, ok in zip(batch, accepted, strict=False) if ok]
        return sent

    def _sample(self, name: str, rows: int, count: int) -> list[Fed]:
        """The chains at or after evenly spread rows."""
        path = self._config.directory / "prompts" / f"{name}.parquet"
        wanted = [rows * n // count for n in range(min(count, rows))]
        found: list[Fed] = []
        for first, chain in itertools.takewhile(lambda c: _before(c, rows), iter_chains(path, 0)):
            if len(found) < len(wanted) and first >= wanted[len(found)]:
                found.append(as_fed(first, chain))
        return found


def _before(chain: Chain, rows: int) -> bool:
    return chain[0] < rows
