"""The worker's part of the fleet's pace: its slots and its heartbeat.

The limits on requests in flight are the fleet's, on the ledger (`lua/pace.lua`); each worker
process asks for its share twice a second. A `Gate` hands the share out to the process's threads.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import redis

from fleet.ledger import Ledger
from fleet.transitions import Pace

log = logging.getLogger(__name__)
T = TypeVar("T")

REPORT_INTERVAL_S = 0.5
BACKOFF_BASE_S = 0.5
LAST_WAIT_S = 120.0
BACKOFF_CAP_S = 60.0


def full_jitter(failures: int) -> float:
    """Seconds to wait before the next try: uniform on [0, min(cap, base · 2^failures)].

    Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015 ("full jitter").
    """
    return random.uniform(0, min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** min(failures, 16)))


class Gate:
    """A semaphore whose size changes while it is held."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._size = 0
        self._used = 0
        self._closed = False

    def resize(self, size: int) -> None:
        with self._condition:
            grown = size - self._size
            self._size = size
            if grown > 0:
                self._condition.notify(grown)

    def close(self) -> None:
        """Hand out nothing more; whoever waits is told at once."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def acquire(self, timeout_s: float) -> bool:
        """Take a slot; False when none came in time or the gate is closed."""
        with self._condition:
            if not self._condition.wait_for(
                lambda: self._closed or self._used < self._size, timeout_s
            ):
                return False
            if self._closed:
                return False
            self._used += 1
            return True

    def release(self) -> None:
        with self._condition:
            self._used -= 1
            self._condition.notify()

    @property
    def used(self) -> int:
        return self._used


class Pacer:
    """Asks the ledger for this process's share twice a second and sizes the gate by it."""

    def __init__(
        self, ledger: Ledger, worker: str, capacity: int, tick: Callable[[], None]
    ) -> None:
        self.gate = Gate()
        #: Nothing succeeds, fleet-wide: claims pass one at a time.
        self.breaker_open = False
        self._ledger = ledger
        self._worker = worker
        self._capacity = capacity
        self._tick = tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pacer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sign off from the ledger."""
        self._stop.set()
        self._thread.join(timeout=REPORT_INTERVAL_S * 4)

    def _loop(self) -> None:
        away = False
        while not self._stop.is_set():
            try:
                pace = self._report()
                self.gate.resize(pace.share)
                if pace.breaker_open and not self.breaker_open:
                    log.error(
                        "nothing succeeds at any endpoint: one request passes every few seconds"
                    )
                self.breaker_open = pace.breaker_open
                self._tick()
                away = False
            except redis.RedisError as error:
                # The last share stays: requests in flight go on without the ledger.
                if not away:
                    log.warning("the ledger does not answer: %s; going on when it does", error)
                away = True
            except Exception:
                # This thread's edge: without its heartbeat the process would work on unseen.
                log.exception("pacing failed; the last share stays")
            self._stop.wait(REPORT_INTERVAL_S)
        try:
            self._report(leaving=True)
        except redis.RedisError:
            log.warning("could not sign off from the ledger; it forgets this worker in 30 s")

    def _report(self, leaving: bool = False) -> Pace:
        return self._ledger.pace(
            self._worker, capacity=self._capacity, in_flight=self.gate.used, leaving=leaving
        )


#: Redis errors that pass: it is away, starting, failing over, or short of memory or disk.
PASSING = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
)
#: The same, as the first word of an error that has no class.
PASSING_WORDS = ("MISCONF", "BUSY", "NOREPLICAS")


def patient(call: Callable[[], T], stopping: Callable[[], bool] = lambda: False) -> T:
    """Call until Redis answers: a response that was paid for outlives an outage.

    Waits 0.1 s, doubling to 5 s. Out of memory or of disk counts as an outage: the collector,
    or its user, makes room. When this process is `stopping` there is an end to it: Redis may
    have been stopped for good.

    Raises:
        redis.RedisError: away for LAST_WAIT_S while stopping, or an error that does not pass.
    """
    wait_s, last_wait_at = 0.1, None
    while True:
        try:
            return call()
        except redis.RedisError as error:
            if not isinstance(error, PASSING) and not str(error).startswith(PASSING_WORDS):
                raise
            if stopping():
                last_wait_at = last_wait_at or time.monotonic()
                if time.monotonic() - last_wait_at > LAST_WAIT_S:
                    raise
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, 5.0)
