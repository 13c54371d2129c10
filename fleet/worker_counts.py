"""What the ledger knows of each worker process: how long it is there, how busy it is."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

#: A worker that has been silent for longer is not there; it reports twice a second.
SILENT_S = 30.0


@dataclass(frozen=True)
class WorkerCounts:
    """One worker process."""

    name: str
    #: Seconds since its last report, and since its first.
    silent_s: float
    age_s: float
    #: Requests that it can have in flight, and has.
    capacity: int
    in_flight: int
    #: Requests that it has ended, however they ended.
    requests: int


def worker_counts(fields: Mapping[bytes, bytes]) -> list[WorkerCounts]:
    """Read the hash `workers`: those that are there, by name."""
    found = (_counts(name.decode(), value, time.time()) for name, value in fields.items())
    return sorted((w for w in found if w.silent_s < SILENT_S), key=lambda w: w.name)


def _counts(name: str, value: bytes, now: float) -> WorkerCounts:
    seen, capacity, in_flight, since, requests = map(int, value.split(b"|"))
    return WorkerCounts(
        name, max(0.0, now - seen / 1000), now - since / 1000, capacity, in_flight, requests
    )
