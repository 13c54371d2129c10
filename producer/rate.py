"""How fast a count grows."""

import time


class Rate:
    """A count's growth per second over the last minute."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    def update(self, value: float) -> float:
        now = time.monotonic()
        self._seen = [(t, v) for t, v in self._seen if now - t < 60] + [(now, value)]
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0
