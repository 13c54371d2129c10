"""One session of a run: feed, watch, show, until the run ends or its user wants it to.

The first Ctrl-C (or SIGTERM) drains: nothing new is sent, what is in flight is finished and
kept. The second aborts. Either way the run can be started again.
"""

import contextlib
import logging

import redis
from kombu.exceptions import KombuError

from fleet.ledger import Ledger
from producer.account_watch import AccountWatch
from producer.children import Workforce
from producer.console import err
from producer.feeder import Feeder
from producer.interrupts import Interrupts
from producer.pauses import DRAINING
from producer.watch import Progress

log = logging.getLogger(__name__)

TICK_S = 0.2


class Session:
    """Feeds one opened run to its end."""

    def __init__(
        self,
        ledger: Ledger,
        feeder: Feeder,
        watch: AccountWatch,
        workforce: Workforce | None = None,
    ) -> None:
        self._ledger = ledger
        self._feeder = feeder
        self._watch = watch
        self._workforce = workforce
        self._away = False

    def run(self) -> bool:
        """Returns when the feeder has finished, or was drained; False when it was aborted."""
        with Interrupts() as interrupts, Progress(err, self._ledger) as progress, self._watch:
            while not self._round(progress):
                interrupts.wait(TICK_S)
                if interrupts.count and not self._feeder.draining:
                    self._drain()
                if interrupts.count > 1:
                    self._abort()
                    return False
            if self._workforce:
                self._workforce.drain(lambda: interrupts.count > 1)
            with contextlib.suppress(redis.RedisError):
                progress.show(self._ledger.snapshot(), at_once=True)
        return True

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

    def _abort(self) -> None:
        if self._workforce:
            self._workforce.kill()
        err.print("Aborted. Requests in flight are lost; start again to go on.")
