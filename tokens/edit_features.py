"""What an edit looks like to the prior: numbers that need no model and no particular vocabulary.

In: canonical ids, their edits; where a target has read the text, what it said. Out: a matrix, one
row an edit, one column a name of `NAMES` or of `EVIDENCE_NAMES`. Splits of one token get a second
set of weights: each column stands twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokens.edit_pairs import PAIR_NAMES, SCALE, Matrix, common, pair_features
from tokens.segmentation import Edit, Vocabulary

_PLACE_NAMES = ("left joined", "right joined", "left", "right", "before", "behind")
_ALL_NAMES = (*PAIR_NAMES, *_PLACE_NAMES)
NAMES = (*_ALL_NAMES, *(f"split: {name}" for name in _ALL_NAMES))
#: Columns more when a target has read the text.
EVIDENCE_NAMES = (
    "log p of first",
    "log p of old first",
    "log p of old",
    "log p behind",
    "split: log p of first",
    "split: log p of old first",
    "no split: loss at once",
)

#: Tokens on each side of an edit that say how usual its surroundings are.
WINDOW = 4
#: Of a token without bytes, and beyond the ends of the text.
NO_TOKEN = -math.log(1000) / SCALE


def features(canonical: Sequence[int], edits: Sequence[Edit], vocabulary: Vocabulary) -> Matrix:
    """One row an edit, one column a name."""
    if not edits:
        return np.empty((0, len(NAMES)))
    around = _Surroundings(canonical, vocabulary).of(edits)
    every = np.concatenate([pair_features(edits, vocabulary), around], axis=1)
    splits = np.array([len(edit.old) == 1 for edit in edits], dtype=float)
    return np.concatenate([every, every * splits[:, None]], axis=1)


@dataclass(frozen=True)
class Evidence:
    """What one pass of the target over the text says, as log-probabilities."""

    #: Of each token of the text.
    written: Sequence[float]
    #: Of each edit's first new token, at its place.
    first: Sequence[float]

    def of(self, some: slice) -> Evidence:
        """For some of the edits."""
        return Evidence(self.written, self.first[some])


def evidence_features(edits: Sequence[Edit], evidence: Evidence) -> Matrix:
    """One row an edit, one column a name of `EVIDENCE_NAMES`."""
    written = np.array([*evidence.written, 0.0])
    sums = np.concatenate([[0.0], np.cumsum(written)])
    start, end = np.array([(edit.start, edit.end) for edit in edits], dtype=int).reshape(-1, 2).T
    first, old_first = np.array(evidence.first, dtype=float), written[start]
    old, behind = sums[end] - sums[start], written[end]
    split = np.array([len(edit.old) == 1 for edit in edits], dtype=float)
    at_once = np.minimum(first - old, 0.0) * (1 - split)
    columns = (first, old_first, old, behind, first * split, old_first * split, at_once)
    return np.stack(columns, axis=1) / SCALE


class _Surroundings:
    """The canonical tokens around an edit."""

    def __init__(self, canonical: Sequence[int], vocabulary: Vocabulary) -> None:
        spellings = [vocabulary.bytes_of.get(token) for token in canonical]
        common_of = np.where(
            [spelling is None for spelling in spellings], NO_TOKEN, common(np.array(canonical))
        )
        # Padded by one at each end, so that nothing below asks where the text ends.
        padded = [b"", *(spelling or b"" for spelling in spellings), b""]
        self._common = np.concatenate([[NO_TOKEN], common_of, [NO_TOKEN]])
        #: Whether a word runs on across the boundary before canonical token n.
        self._joined = np.array(
            [a[-1:].isalpha() and b[:1].isalpha() for a, b in itertools.pairwise(padded)],
            dtype=float,
        )
        self._mean = _means(common_of)

    def of(self, edits: Sequence[Edit]) -> Matrix:
        start, end = np.array([(edit.start, edit.end) for edit in edits], dtype=int).T
        columns = (
            self._joined[start],
            self._joined[end],
            self._common[start],
            self._common[end + 1],
            self._mean[start],
            self._mean[end],
        )
        return np.stack(columns, axis=1)


def _means(values: Matrix) -> Matrix:
    """Of the values around each boundary, `WINDOW` on each side; there is one boundary more."""
    count = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    begin = np.maximum(0, np.arange(count + 1) - WINDOW)
    end = np.minimum(count, np.arange(count + 1) + WINDOW)
    means: Matrix = (sums[end] - sums[begin]) / np.maximum(1, end - begin)
    return means
