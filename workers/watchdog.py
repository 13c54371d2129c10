"""Ends a worker process whose consumer has stopped, so that it is started again.

A Celery consumer may stop after Redis was away, and nobody sees it: the process lives, answers
pings and reports its heartbeat. What tells it from a worker that merely waits: messages lie in the
queue, threads are free, and for `patience_s` no task has begun. Requests in flight are finished
first. It knows nothing of runs.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from fleet.app import QUEUE

log = logging.getLogger(__name__)

#: EX_SOFTWARE of sysexits.h.
STALLED = 70
LOOK_S = 1.0


class Watchdog:
    """Watches one process. `working` is the context of each task."""

    def __init__(
        self,
        client: redis.Redis,
        capacity: int,
        patience_s: float,
        stop: Callable[[], None],
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """`stop` is told when no more is to be started; `end` ends the process."""
        self._client = client
        self._capacity = capacity
        self._patience_s = patience_s
        self._stop = stop
        self._end = end
        self._lock = threading.Lock()
        self._tasks = 0
        self._lively_at = time.monotonic()
        threading.Thread(target=self._loop, name="watchdog", daemon=True).start()

    @contextmanager
    def working(self) -> Iterator[None]:
        with self._lock:
            self._tasks += 1
            self._lively_at = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._tasks -= 1
                self._lively_at = time.monotonic()

    def _loop(self) -> None:
        while not self._stalled():
            time.sleep(LOOK_S)
        log.critical(
            "no task has begun for %.0f s although messages wait and threads are free: the"
            " consumer has stopped; this process ends, to be started again",
            self._patience_s,
            extra={"action": "stalled"},
        )
        self._stop()
        while self._tasks:
            time.sleep(LOOK_S)
        logging.shutdown()
        self._end(STALLED)

    def _stalled(self) -> bool:
        if self._tasks >= self._capacity or not self._work_waits():
            self._lively_at = time.monotonic()
        return time.monotonic() - self._lively_at > self._patience_s

    def _work_waits(self) -> bool:
        """An outage is no stall: the consumer is given its time once Redis is back."""
        try:
            return bool(self._client.llen(QUEUE))
        except redis.RedisError:
            return False
