"""Outages of what a process depends on: said once, waited for with growing pauses.

It does not know what is down.
"""

import logging
import threading
import time

log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0


class Trouble:
    """An outage: said once when it begins and once when it ends; waits grow meanwhile."""

    def __init__(self, what: str, stop: threading.Event) -> None:
        self._what = what
        self._stop = stop
        self._began_at: float | None = None
        self._wait_s = FIRST_WAIT_S

    def wait(self, why: str) -> None:
        if self._began_at is None:
            self._began_at, self._wait_s = time.monotonic(), FIRST_WAIT_S
            log.error("%s: %s", self._what, why, extra={"action": "wait"})
        self._stop.wait(self._wait_s)
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    def over(self) -> None:
        if self._began_at is not None:
            seconds = time.monotonic() - self._began_at
            log.info("%s: over after %.0f s", self._what, seconds, extra={"action": "go on"})
            self._began_at = None
