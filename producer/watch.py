"""Watching a run: a live picture on a terminal, a plain line every few seconds elsewhere.

In: snapshots, one after another. The feeder shows its own run so; `producer watch` shows any.
"""

import time
from collections import defaultdict
from types import TracebackType

import redis
from rich.console import Console
from rich.live import Live

from fleet.ledger import Ledger
from fleet.snapshot import Snapshot
from producer.console import err, out
from producer.interrupts import Interrupts
from producer.live_view import Growth, live_view, progress_of
from producer.progress import has_ended, line
from producer.rate import Rate

LINE_INTERVAL_S = 5.0
#: A picture costs some milliseconds of a core.
PICTURE_INTERVAL_S = 0.5


class Progress:
    """Shows one snapshot after another."""

    def __init__(self, console: Console, ledger: Ledger) -> None:
        self._console = console
        self._ledger = ledger
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._rates: defaultdict[str, Rate] = defaultdict(Rate)
        self._next_at = 0.0

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, snapshot: Snapshot, *, at_once: bool = False) -> None:
        """Show a snapshot, unless the last was shown a moment ago.

        Raises:
            redis.RedisError: Redis is away.
        """
        if time.monotonic() < self._next_at and not at_once:
            return
        growth = self._growth(snapshot)
        if self._live:
            self._next_at = time.monotonic() + PICTURE_INTERVAL_S
            self._live.update(live_view(self._ledger.keys.run_name, snapshot, growth), refresh=True)
        else:
            self._next_at = time.monotonic() + LINE_INTERVAL_S
            text = line(snapshot, growth.requests, growth.tokens)
            self._console.print(text, highlight=False, soft_wrap=True)

    def _growth(self, snapshot: Snapshot) -> Growth:
        return Growth(
            requests=self._rates["requests"].update(snapshot.done),
            tokens=self._rates["tokens"].update(snapshot.tokens),
            datasets={
                d.name: self._rates[f"dataset {d.name}"].update(progress_of(d)[0])
                for d in snapshot.datasets
            },
            workers={
                w.name: self._rates[f"worker {w.name}"].update(w.requests) for w in snapshot.workers
            },
            memory_bytes=self._ledger.memory_bytes(),
        )


def watch(ledger: Ledger, *, patient: bool) -> bool | None:
    """Show a run until it has ended and is on disk; False when the user stops looking first.

    Args:
        patient: wait for a Redis that is away; else it is None at once: a run on this machine has
            ended, and its server with it.
    """
    away = False
    with Interrupts() as interrupts, Progress(out, ledger) as progress:
        while not interrupts.count:
            try:
                snapshot = ledger.snapshot()
                over = has_ended(snapshot) and not snapshot.in_flight and not snapshot.backlog
                progress.show(snapshot, at_once=over)
                if over:
                    return True
                away = False
            except redis.RedisError as error:
                if not patient:
                    return None
                if not away:
                    err.print(f"Redis does not answer: {error}; looking again until it does")
                away = True
            interrupts.wait(PICTURE_INTERVAL_S)
    return False
