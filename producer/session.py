"""One session of a run: feed, watch, show, until the run ends or its user wants it to.

The first Ctrl-C (or SIGTERM) drains: nothing new is sent, what is in flight is finished and
kept. The second aborts. Either way the run can be started again.
"""

import logging
import signal
import threading
from functools import partial
from types import FrameType, TracebackType

import redis
from celery import Celery
from kombu.exceptions import KombuError

from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from producer.account import Account
from producer.account_watch import AccountWatch
from producer.children import Workforce
from producer.console import Exit, err
from producer.feeder import Feeder
from producer.opening import Opened, tell_endpoints
from producer.outcome import count
from producer.pauses import DRAINING
from producer.progress import Progress

log = logging.getLogger(__name__)

TICK_S = 0.2


class Interrupts:
    """Counts the user's wishes to stop, for the time of a `with` block."""

    def __init__(self) -> None:
        self.count = 0
        self._wake = threading.Event()

    def __enter__(self) -> "Interrupts":
        self._before = {s: signal.signal(s, self._on) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._wake.set()

    def wait(self, seconds: float) -> None:
        """Sleep, or until the next wish to stop."""
        self._wake.wait(seconds)
        self._wake.clear()


class Session:
    """Feeds one opened run to its end."""

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        app: Celery,
        account: Account,
        opened: Opened,
        workforce: Workforce | None = None,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._rows = opened.rows
        self._feeder = Feeder(config, ledger, app, opened.rows)
        tell = partial(tell_endpoints, config, ledger, opened.run_id)
        self._watch = AccountWatch(config, ledger, account, opened.endpoints, tell)
        self._workforce = workforce
        self._away = False

    def run(self) -> Exit:
        """Returns when the run has ended, or was drained or aborted."""
        with Interrupts() as interrupts, Progress(err) as progress, self._watch:
            while not self._round(progress):
                interrupts.wait(TICK_S)
                if interrupts.count and not self._feeder.draining:
                    self._drain()
                if interrupts.count > 1:
                    return self._abort()
            if self._workforce:
                self._workforce.drain(lambda: interrupts.count > 1)
        return self._close()

    def _round(self, progress: Progress) -> bool:
        """One round; True when there is nothing left to do. Redis may be away for any time."""
        try:
            snapshot = self._feeder.step()
            progress.show(snapshot)
            if self._workforce:
                if self._feeder.draining:
                    return not self._workforce.working()
                self._workforce.supervise()
            if self._away:
                log.warning("Redis answers again")
            self._away = False
            return self._feeder.finished(snapshot)
        except (redis.RedisError, KombuError) as error:
            if not self._away:
                log.warning("Redis does not answer: %s; going on when it does", error)
            self._away = True
            # Without a worker nothing is under way; without Redis nobody can say more.
            return self._feeder.draining and not (self._workforce and self._workforce.working())

    def _drain(self) -> None:
        err.print("Draining: what is in flight is finished. Ctrl-C again to abort.")
        self._feeder.draining = True
        try:
            self._ledger.pause(DRAINING, "the feeder was told to stop")
        except redis.RedisError as error:
            log.warning("Redis does not answer: %s; workers may still start requests", error)
        if self._workforce:
            self._workforce.dismiss()

    def _abort(self) -> Exit:
        if self._workforce:
            self._workforce.kill()
        err.print("Aborted. Requests in flight are lost; start again to go on.")
        return Exit.INTERRUPTED

    def _close(self) -> Exit:
        outcome = count(self._config, self._ledger, self._rows)
        err.print(outcome.sentence(), highlight=False, soft_wrap=True)
        if backlog := self._ledger.snapshot().backlog:
            err.print(f"{backlog:,} completions wait for the collector to write them.")
        if not outcome.whole:
            err.print("Not at its end. Start again to go on.")
            return Exit.INTERRUPTED
        if outcome.failed:
            text = (
                f"{outcome.failed:,} prompts failed: see `producer failures {self._config.path}`."
            )
            err.print(text, highlight=False, soft_wrap=True)
            return Exit.SOME_FAILED
        return Exit.OK
