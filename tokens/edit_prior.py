"""How likely a model is to write an edit in place of the canonical tokens.

In: rows whose sampled ids are known. Out: a `Prior`, which gives the log-odds of each edit, and
is one weight a feature: a JSON file of a few kilobytes, whatever the number of rows. Learned by
logistic regression over all edits of the rows. A prior that is learned with a target's evidence
asks for that evidence whenever it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tokens.edit_features import (
    EVIDENCE_NAMES,
    NAMES,
    Evidence,
    evidence_features,
    features,
)
from tokens.edit_pairs import Matrix
from tokens.segmentation import Edit, Vocabulary, difference, edits

#: Weight of the squared weights in the loss: holds down a feature that few rows have.
PENALTY = 3.0
#: Rows that are learned from, at most, and the share of wrong edits that is looked at.
MOST_ROWS, ONE_IN = 2000, 8
#: Rows of columns in memory: at 80 numbers a row 10 MB.
EDITS_AT_ONCE = 16_384
#: Newton's steps: how many, the longest, and the one that ends it.
STEPS, LONGEST_STEP, SHORTEST_STEP = 50, 3.0, 1e-6


class PriorError(ValueError):
    """A saved prior that cannot be read, or too little to learn one from."""


@dataclass(frozen=True)
class Known:
    """A completion whose ids are known, without its special tokens."""

    canonical: Sequence[int]
    sampled: Sequence[int]
    #: A target's, for the edits of the canonical ids in their order.
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Prior:
    """A weight for each of `NAMES`, then of `EVIDENCE_NAMES` if it was learned with evidence."""

    weights: tuple[float, ...]

    def log_odds(
        self,
        ids: Sequence[int],
        found: Sequence[Edit],
        vocabulary: Vocabulary,
        evidence: Evidence | None = None,
    ) -> Matrix:
        """Of each edit of the ids being what the model wrote."""
        weights = np.array(self.weights)
        odds = np.empty(len(found))
        for start in range(0, len(found), EDITS_AT_ONCE):
            some = slice(start, start + EDITS_AT_ONCE)
            told = evidence and evidence.of(some)
            odds[some] = _columns(ids, found[some], vocabulary, told) @ weights
        return odds

    def to_json(self) -> str:
        names = (NAMES + EVIDENCE_NAMES)[: len(self.weights)]
        return json.dumps(dict(zip(names, self.weights, strict=True)), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Prior:
        """Raises PriorError: the text is not what `to_json` wrote."""
        try:
            named = {name: float(weight) for name, weight in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise PriorError(f"not a saved prior, learn it again: {error}") from error
        if tuple(named) not in (NAMES, NAMES + EVIDENCE_NAMES):
            raise PriorError("saved by another version of the features, learn it again")
        return cls(tuple(named.values()))


def learn(rows: Iterable[Known], vocabulary: Vocabulary) -> Prior:
    """The prior of these rows: a few hundred are enough, those beyond `MOST_ROWS` are not read.

    Raises:
        PriorError: no row differs from its canonical ids in an edit.
    """
    parts = []
    for row, _ in zip(rows, range(MOST_ROWS), strict=False):
        part = _examples(row, vocabulary)
        if part is not None:
            parts.append(part)
    if not any(truth.any() for _, truth in parts):
        raise PriorError("no row differs from its canonical ids: nothing to learn from")
    columns, truths = zip(*parts, strict=True)
    return Prior(_regress(np.concatenate(columns), np.concatenate(truths)))


def _examples(row: Known, vocabulary: Vocabulary) -> tuple[Matrix, Matrix] | None:
    """Columns and truth of the row's edits: those that were made, and one in so many others."""
    made = difference(row.canonical, row.sampled, vocabulary)
    if made is None:
        return None
    found = list(edits(row.canonical, vocabulary))
    wanted = set(made)
    truth = np.array([edit in wanted for edit in found], dtype=float)
    kept = np.flatnonzero((truth == 1) | (np.arange(len(found)) % ONE_IN == 0))
    columns = _columns(row.canonical, found, vocabulary, row.evidence)
    return columns[kept], truth[kept]


def _columns(
    ids: Sequence[int], found: Sequence[Edit], vocabulary: Vocabulary, evidence: Evidence | None
) -> Matrix:
    columns = features(ids, found, vocabulary)
    if evidence is None:
        return columns
    return np.concatenate([columns, evidence_features(found, evidence)], axis=1)


def _regress(x: Matrix, y: Matrix) -> tuple[float, ...]:
    """Penalised logistic regression by Newton's method; a kept wrong edit stands for `ONE_IN`."""
    count = np.where(y == 1, 1.0, float(ONE_IN))
    weights = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-(x @ weights)))
        gradient = x.T @ (count * (p - y)) + PENALTY * weights
        hessian = (x * (count * p * (1 - p))[:, None]).T @ x + PENALTY * np.eye(len(weights))
        step = np.linalg.solve(hessian, gradient)
        longest = float(np.abs(step).max())
        weights -= step * min(1.0, LONGEST_STEP / max(longest, SHORTEST_STEP))
        if longest < SHORTEST_STEP:
            break
    return tuple(float(weight) for weight in weights)
