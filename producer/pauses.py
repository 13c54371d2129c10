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


class PauseWatch:
    """Looks at the cause of a pause ever less often, up to every 30 s."""

    def __init__(self, config: RunConfig, ledger: Ledger, account: Account) -> None:
        self._config = config
        self._ledger = ledger
        self._account = account
        self._wait_s = FIRST_CHECK_S
        self._next_at = 0.0
        self._resumed_at = 0.0

    def look(self, snapshot: Snapshot) -> None:
        """Resume the run if it is paused for a cause that is gone."""
        now = time.monotonic()
        if snapshot.paused is None:
            # A resume that lasted shows that the cause was gone: be quick the next time.
            if self._resumed_at and now - self._resumed_at > 2 * LONGEST_CHECK_S:
                self._wait_s = FIRST_CHECK_S
            self._next_at = 0.0
            return
        if snapshot.paused["kind"] == BY_USER:
            return
        if self._next_at == 0.0:
            self._next_at = now + self._wait_s
        if now < self._next_at:
            return
        self._wait_s = min(self._wait_s * 2, LONGEST_CHECK_S)
        self._next_at = now + self._wait_s
        if self._is_gone(snapshot.paused["kind"]):
            self._resumed_at = now
            self._ledger.resume()
            log.warning("the run goes on: %s is over", snapshot.paused["kind"])

    def _is_gone(self, kind: str) -> bool:
        try:
            balance = self._account.balance()
            if kind == "no endpoint":
                return bool(
                    allowed(self._account.endpoints(self._config.run.model), self._config.providers)
                )
        except AccountError as error:
            log.debug("still paused: %s", error)
            return False
        return balance.remaining_usd is None or balance.remaining_usd > 0
