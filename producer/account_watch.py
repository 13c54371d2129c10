"""Watches the account and the listing while a run goes on, at a humane rate.

In: the account, the ledger. Out: on the ledger, what the account has left (so that claims stop
before the money does), and which endpoints may be asked at which prices; pauses, and their end.
In a thread of its own: a slow answer of OpenRouter's does not hold up the feeder.
"""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

import redis

from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from fleet.snapshot import Snapshot
from fleet.transitions import nano_usd
from producer.account import Account, AccountError, Balance
from producer.opening import Opened
from producer.pauses import PauseWatch
from producer.policy import NobodyLeft, Verdict, judge, without_unusable
from producer.rate import Rate

log = logging.getLogger(__name__)

TICK_S = 0.5
BALANCE_EVERY_S = 10.0
LISTING_EVERY_S = 10.0
OUT_OF_CREDITS = "out of credits"
NO_ENDPOINT = "no endpoint"


class AccountWatch:
    """Runs as long as its `with` block."""

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        account: Account,
        opened: Opened,
        tell: Callable[[list[Verdict]], None],
    ) -> None:
        """`tell` is called with every endpoint when one has changed."""
        self._config = config
        self._ledger = ledger
        self._account = account
        self._needs = opened.needs
        self._verdicts = opened.verdicts
        self._tell = tell
        self._pauses = PauseWatch(ledger, self._cause_is_gone)
        self._spending = Rate()
        self._balance_at = 0.0
        self._listing_at = time.monotonic() + LISTING_EVERY_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="account-watch", daemon=True)

    def __enter__(self) -> "AccountWatch":
        self._look()  # the first claim knows what there is
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=TICK_S)

    def _loop(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self._look()
            except redis.RedisError as error:
                log.debug("Redis does not answer: %s", error)
            except Exception:
                # This thread's edge: a run goes on unwatched rather than not at all.
                log.exception("watching the account failed")

    def _look(self) -> None:
        snapshot = self._ledger.snapshot()
        usd_per_s = self._spending.update(snapshot.spent_usd)
        self._pauses.look(snapshot)
        if snapshot.paused:
            return
        now = time.monotonic()
        try:
            if now >= self._balance_at:
                self._balance_at = now + BALANCE_EVERY_S
                self._look_at_balance(snapshot, usd_per_s)
            if now >= self._listing_at:
                self._listing_at = now + LISTING_EVERY_S
                self._look_at_listing(snapshot)
        except AccountError as error:
            log.debug("the account: %s", error)
        if snapshot.funds_short and snapshot.balance:
            left = snapshot.balance["remaining_usd"]
            reason = (
                f"the credits: {left:.6f} USD are left, less than one more answer may cost"
                f" (run.cap_usd is not the limit)"
            )
            self._pause(OUT_OF_CREDITS, reason)

    def _pause(self, kind: str, reason: str) -> None:
        if self._ledger.pause(kind, reason):
            log.error("the run is paused: %s", reason, extra={"action": "paused"})

    def _look_at_balance(self, snapshot: Snapshot, usd_per_s: float) -> Balance:
        """`snapshot` is from before: what is billed in between counts twice, never not at all."""
        balance = self._account.balance()
        self._ledger.keep_usage_before(balance.usage_usd - snapshot.spent_usd)
        left = balance.remaining_usd
        told = {"remaining_usd": left, "usd_per_s": usd_per_s, "at": time.time()}
        counted = snapshot.spent_usd + snapshot.unconfirmed_most_usd
        self._ledger.set_balance(told, None if left is None else nano_usd(counted + left))
        return balance

    def _judged(self, snapshot: Snapshot) -> list[Verdict]:
        listing = self._account.endpoints(self._config.run.model)
        return without_unusable(judge(listing, self._needs), snapshot.endpoints)

    def _look_at_listing(self, snapshot: Snapshot) -> None:
        """Prices rise, endpoints go down and come, answers make no samples: the ledger is told."""
        verdicts = self._judged(snapshot)
        before, now = (
            {v.endpoint.tag: _matter(v) for v in vs} for vs in (self._verdicts, verdicts)
        )
        if before == now and any(verdict.kept for verdict in verdicts):
            return
        try:
            self._tell(verdicts)
        except NobodyLeft as error:
            self._pause(NO_ENDPOINT, str(error))
        self._verdicts = verdicts
        for tag in sorted(before.keys() | now.keys()):
            if before.get(tag) != now.get(tag):
                log.warning("endpoint %s: %s", tag, now.get(tag) or "not listed any more")

    def _cause_is_gone(self, kind: str, snapshot: Snapshot) -> bool:
        """A key without a limit of its own says nothing of the credits: only a request can tell."""
        try:
            if kind == NO_ENDPOINT:
                verdicts = self._judged(snapshot)
                self._tell(verdicts)
                self._verdicts = verdicts
            balance = self._look_at_balance(snapshot, 0.0)
        except (AccountError, NobodyLeft) as error:
            log.debug("still paused: %s", error)
            return False
        # What two answers may cost: with less the run would only pause again.
        dearest = max((v.endpoint.completion_usd for v in self._verdicts if v.kept), default=0.0)
        least_usd = 2 * self._config.sampling.max_tokens * dearest
        return balance.remaining_usd is None or balance.remaining_usd >= least_usd


def _matter(verdict: Verdict) -> str:
    """What of an endpoint matters to a run under way."""
    if not verdict.kept:
        return "; ".join(verdict.reasons)
    endpoint = verdict.endpoint
    return f"{1e6 * endpoint.prompt_usd:g} and {1e6 * endpoint.completion_usd:g} USD a million"
