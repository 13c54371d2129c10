"""Ends a pause whose cause is gone: the balance was topped up, the key or an endpoint is back.

A pause that the user asked for is the user's to end.
"""

import logging
import time

from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from fleet.snapshot import Snapshot
from producer.account import Account, AccountError, allowed

log = logging.getLogger(__name__)

FIRST_CHECK_S = 1.0
LONGEST_CHECK_S = 30.0
BY_USER = "user"
#: A feeder was told to stop, and with it its run; any feeder that goes on ends this pause.
DRAINING = "draining"


class PauseWatch:
    """Looks at the cause of a pause ever less often, up to every 30 s."""

    def __init__(
        self, config: RunConfig, ledger: Ledger, account: Account, least_usd: float
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._account = account
        #: The balance that one request may need: with less the run would only pause again.
        self._least_usd = least_usd
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
        if now < self._next_at:
            return
        self._wait_s = min(self._wait_s * 2, LONGEST_CHECK_S)
        self._next_at = now + self._wait_s
        if self._may_be_gone(kind):
            self._done_at_resume = snapshot.done
            self._ledger.resume()
            log.warning("the run goes on after: %s", kind, extra={"action": "resumed"})

    def _may_be_gone(self, kind: str) -> bool:
        """A key without a limit of its own says nothing of the credits: only a request can tell."""
        try:
            balance = self._account.balance()
            if kind == "no endpoint":
                endpoints = self._account.endpoints(self._config.run.model)
                return bool(allowed(endpoints, self._config.providers))
        except AccountError as error:
            log.debug("still paused: %s", error)
            return False
        return balance.remaining_usd is None or balance.remaining_usd >= self._least_usd
