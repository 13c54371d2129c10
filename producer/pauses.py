"""Ends a pause whose cause is gone: the balance was topped up, the key or an endpoint is back.

A pause that the user asked for is the user's to end.
"""

import logging
import time
from collections.abc import Callable

from fleet.ledger import Ledger
from fleet.snapshot import Snapshot

log = logging.getLogger(__name__)

FIRST_CHECK_S = 1.0
LONGEST_CHECK_S = 30.0
BY_USER = "user"
#: A feeder was told to stop, and with it its run; any feeder that goes on ends this pause.
DRAINING = "draining"


class PauseWatch:
    """Looks at the cause of a pause ever less often, up to every 30 s."""

    def __init__(self, ledger: Ledger, cause_is_gone: Callable[[str, Snapshot], bool]) -> None:
        self._ledger = ledger
        self._cause_is_gone = cause_is_gone
        self._wait_s = FIRST_CHECK_S
        self._next_at: float | None = None
        self._done_at_resume = 0

    def look(self, snapshot: Snapshot) -> None:
        """Resume the run if it is paused for a cause that is gone."""
        if snapshot.paused is None:
            self._next_at = None
            return
        kind = snapshot.paused["kind"]
        if kind == BY_USER:
            return
        if kind == DRAINING:
            self._ledger.resume()
            return
        now = time.monotonic()
        if self._next_at is None:
            # Something succeeded since the last resume: that cause was gone, this is another.
            if snapshot.done > self._done_at_resume:
                self._wait_s = FIRST_CHECK_S
            self._next_at = now + self._wait_s
        if now < self._next_at or time.time() < (snapshot.paused.get("until") or 0):
            return
        self._wait_s = min(self._wait_s * 2, LONGEST_CHECK_S)
        self._next_at = now + self._wait_s
        if self._cause_is_gone(kind, snapshot):
            self._done_at_resume = snapshot.done
            self._next_at = None
            self._ledger.resume()
            log.warning("the run goes on after: %s", kind, extra={"action": "resumed"})
