"""Where a run's money goes: what the whole will cost, and when the money ends at this rate.

In: a snapshot. Out: a `Forecast`. Pure.
"""

import time
from dataclasses import dataclass

from fleet.snapshot import DatasetCounts, Snapshot

#: A rate that was measured longer ago says nothing of now: no feeder is watching.
STALE_S = 60.0


@dataclass(frozen=True)
class Forecast:
    """None where nothing can be said yet."""

    #: What the run will have cost when every dataset has come to its end.
    total_usd: float | None
    usd_per_s: float | None
    #: Seconds until the run is done, at this rate.
    done_in_s: float | None
    #: Seconds until the money ends, at this rate, and whose: `cap` or `balance`. Only when that
    #: comes before the run is done.
    money_ends_in_s: float | None
    money_ends_by: str | None


def forecast(snapshot: Snapshot, now: float | None = None) -> Forecast:
    """`now` in seconds since the epoch; None: the clock's."""
    total = _total_usd(snapshot)
    rate = _rate(snapshot, time.time() if now is None else now)
    if not rate or total is None:
        return Forecast(total, rate, None, None, None)
    done_in_s = max(0.0, total - snapshot.spent_usd) / rate
    ends = {}
    if snapshot.cap_usd:
        left = snapshot.cap_usd - snapshot.spent_usd - snapshot.unconfirmed_most_usd
        ends["cap"] = max(0.0, left) / rate
    if snapshot.balance and snapshot.balance["remaining_usd"] is not None:
        ends["balance"] = max(0.0, snapshot.balance["remaining_usd"]) / rate
    by = min(ends, key=lambda name: ends[name], default=None)
    if by is None or ends[by] >= done_in_s:
        return Forecast(total, rate, done_in_s, None, None)
    return Forecast(total, rate, done_in_s, ends[by], by)


def _rate(snapshot: Snapshot, now: float) -> float | None:
    """US dollars a second, as the feeder last measured it."""
    if snapshot.balance is None or now - snapshot.balance["at"] > STALE_S:
        return None
    return float(snapshot.balance["usd_per_s"])


def _total_usd(snapshot: Snapshot) -> float | None:
    done = sum(d.done for d in snapshot.datasets)
    if not done:
        return None
    mean_usd = sum(d.spent_usd for d in snapshot.datasets) / done
    left_usd = 0.0
    for dataset in snapshot.datasets:
        per_answer = dataset.spent_usd / dataset.done if dataset.done else mean_usd
        left_usd += _answers_left(dataset) * per_answer
    return snapshot.spent_usd + snapshot.unconfirmed_usd + left_usd


def _answers_left(dataset: DatasetCounts) -> float:
    if dataset.cancelled or dataset.ended:
        return 0.0
    prompts = max(0, dataset.prompts - dataset.done - dataset.failed)
    if not dataset.budget_tokens or not dataset.mean_tokens:
        return float(prompts)
    return min(prompts, max(0, dataset.budget_tokens - dataset.tokens) / dataset.mean_tokens)


def duration(seconds: float) -> str:
    """`3 d 4 h`, `2 h 5 min`, `40 s`."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if days >= 2:
        return f"{int(days)} d {int(hours % 24)} h"
    if hours >= 1:
        return f"{int(hours)} h {int(minutes % 60)} min"
    return f"{int(minutes)} min" if minutes >= 2 else f"{int(seconds)} s"
