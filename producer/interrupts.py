"""The user's wish to stop: Ctrl-C, or SIGTERM."""

import signal
import threading
from types import FrameType, TracebackType


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
