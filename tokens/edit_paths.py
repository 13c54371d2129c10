"""The likeliest set of edits that gains a given number of tokens, and the weight of all sets.

In: edits with their log-odds, how many tokens to gain. Out: the set of edits that do not overlap
with the highest sum, and the logarithm of the summed weight of every such set: the first over
the second is the chance that the first is right, as far as the odds are. Dynamic programming
over canonical boundaries and tokens gained; nothing is enumerated.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tokens.segmentation import Edit

#: Sets may stray this far beyond the gain asked for before they come back to it.
SLACK = 2


@dataclass(frozen=True)
class Choice:
    """A set of edits in order of place."""

    edits: tuple[Edit, ...]
    #: Sum of the log-odds of the edits.
    log_weight: float
    #: Logarithm of the summed weight of all sets with the same gain, this one included.
    log_total: float

    @property
    def confidence(self) -> float:
        """Share of this set in the weight of all."""
        return min(1.0, math.exp(self.log_weight - self.log_total))


@dataclass(frozen=True)
class _Step:
    """The best set up to a boundary: its last edit and what came before."""

    log_weight: float
    log_total: float
    last: Edit | None = None
    before: _Step | None = None


def likeliest(odds: Sequence[tuple[Edit, float]], length: int, gain: int) -> Choice | None:
    """The best set of edits of `length` canonical tokens that gains `gain`; None: there is none."""
    ending: dict[int, list[tuple[Edit, float]]] = defaultdict(list)
    for edit, log_odds in odds:
        ending[edit.end].append((edit, log_odds))
    widest = abs(gain) + SLACK
    reached = [{0: _Step(0.0, 0.0)}]
    for end in range(1, length + 1):
        steps = reached[-1]
        for edit, log_odds in ending[end]:
            steps = _extended(steps, reached[edit.start], (edit, log_odds), widest)
        reached.append(steps)
    final = reached[-1].get(gain)
    if final is None:
        return None
    return Choice(_trace(final), final.log_weight, final.log_total)


def _extended(
    steps: dict[int, _Step], starts: dict[int, _Step], scored: tuple[Edit, float], widest: int
) -> dict[int, _Step]:
    """The steps at a boundary, with those that end in one more edit."""
    edit, log_odds = scored
    joined = dict(steps)
    for gained, before in starts.items():
        total = gained + edit.change
        if abs(total) <= widest:
            step = _Step(before.log_weight + log_odds, before.log_total + log_odds, edit, before)
            joined[total] = _joined(joined.get(total), step)
    return joined


def _joined(one: _Step | None, other: _Step) -> _Step:
    """The better of two steps, with the weight of both."""
    if one is None:
        return other
    high, low = sorted((one.log_total, other.log_total), reverse=True)
    total = high + math.log1p(math.exp(low - high))
    better = one if one.log_weight >= other.log_weight else other
    return _Step(better.log_weight, total, better.last, better.before)


def _trace(step: _Step) -> tuple[Edit, ...]:
    found: list[Edit] = []
    at: _Step | None = step
    while at is not None:
        if at.last is not None:
            found.append(at.last)
        at = at.before
    return tuple(reversed(found))
