"""Ids of a completion whose count is off: the likeliest segmentation with the billed number.

In: the canonical ids of the text, how many tokens were billed for it, a `Prior`, and a `Scorer`
where a target runs. Out: ids of the same bytes and of exactly that number, with the chance that
they are right as far as the odds are; or None where there are none within reach. Two routes:

    by_prior     the prior alone; sure of little, and says so
    by_target    the target's likelihood: each round ranks the edits of the ids so far, has the
                 best ones scored, and takes the likeliest set; the next round sees what it
                 changed, and may take it back. Serves rows whose count agrees, too

Special tokens are the caller's: cut the completion at them, or leave them in without bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokens.edit_features import Evidence
from tokens.edit_pairs import Matrix
from tokens.edit_paths import Choice, likeliest
from tokens.edit_prior import Prior
from tokens.segmentation import Edit, Vocabulary, apply, edits

#: A count further off has another cause than sampling.
MOST_OFF = 8
#: Edits that `by_prior` weighs; the rest is too unlikely to matter.
MOST_WEIGHED = 400


@dataclass(frozen=True)
class Recovered:
    """Ids that spell the text, as many as were billed."""

    ids: list[int]
    #: Chance that these are the sampled ids, by the odds that chose them.
    confidence: float


@dataclass(frozen=True)
class Text:
    """A completion without its end token."""

    canonical: Sequence[int]
    billed: int


class Scorer(Protocol):
    """A target that reads one completion behind its prompt."""

    def evidence(self, ids: Sequence[int], edits: Sequence[Edit]) -> Evidence:
        """From one pass over the ids."""

    def gains(self, ids: Sequence[int], edits: Sequence[Edit]) -> Sequence[float]:
        """By how much each edit alone changes the log-probability of the completion."""


@dataclass(frozen=True)
class Effort:
    """What `by_target` may spend on a completion."""

    #: Edits scored a round, towards the billed count; a third as many each that keep the
    #: count or lead away from it.
    scored: int = 48
    rounds: int = 4


def by_prior(text: Text, vocabulary: Vocabulary, prior: Prior) -> Recovered | None:
    """The likeliest ids by the prior; the canonical ones when their count is the billed one."""
    gain = text.billed - len(text.canonical)
    if abs(gain) > MOST_OFF:
        return None
    found = list(edits(text.canonical, vocabulary))
    odds = prior.log_odds(text.canonical, found, vocabulary)
    weighed = [(found[at], float(odds[at])) for at in _best_first(odds)[:MOST_WEIGHED]]
    choice = likeliest(weighed, len(text.canonical), gain)
    if choice is None:
        return None
    return Recovered(apply(text.canonical, choice.edits), choice.confidence)


def by_target(
    text: Text, vocabulary: Vocabulary, prior: Prior, scorer: Scorer, effort: Effort = Effort()
) -> Recovered | None:
    """The likeliest ids by the target; `prior` was learned with its evidence."""
    if abs(text.billed - len(text.canonical)) > MOST_OFF:
        return None
    ids = list(text.canonical)
    confidence = 0.0
    for _ in range(effort.rounds):
        choice = _round(ids, text.billed - len(ids), _Target(vocabulary, prior, scorer), effort)
        if choice is None:
            return None
        ids, confidence = apply(ids, choice.edits), choice.confidence
        if not choice.edits:
            break
    return Recovered(ids, confidence)


@dataclass(frozen=True)
class _Target:
    vocabulary: Vocabulary
    prior: Prior
    scorer: Scorer


def _round(ids: Sequence[int], gain: int, target: _Target, effort: Effort) -> Choice | None:
    """The likeliest set of edits of the ids with that gain."""
    found = list(edits(ids, target.vocabulary))
    evidence = target.scorer.evidence(ids, found)
    odds = target.prior.log_odds(ids, found, target.vocabulary, evidence)
    ranked = [found[at] for at in _best_first(odds)]
    scored = list(_shortlist(ranked, gain, effort.scored))
    return likeliest(
        list(zip(scored, target.scorer.gains(ids, scored), strict=True)), len(ids), gain
    )


def _best_first(odds: Matrix) -> list[int]:
    """Places of the odds, the highest first."""
    places: list[int] = np.argsort(-odds, kind="stable").tolist()
    return places


def _shortlist(ranked: Sequence[Edit], gain: int, most: int) -> Iterator[Edit]:
    """The best edits by their direction."""
    for direction in (-1, 0, 1):
        ahead = direction * gain > 0
        there = [edit for edit in ranked if _sign(edit.change) == direction]
        yield from there[: most if ahead else most // 3]


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
