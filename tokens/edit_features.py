"""What an edit looks like to the prior: numbers that need no model and no particular vocabulary.

In: canonical ids, their edits. Out: a matrix, one row an edit, one column a name of `NAMES`.
How common a token is comes from its id alone: byte-pair vocabularies are numbered in the order
of their merges, and that follows Zipf's law closely enough. Counts of tokens in 90,000 sampled
ones did no better. Splits of one token get a second set of weights: each column stands twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tokens.segmentation import Edit, Ids, Vocabulary

Matrix = npt.NDArray[np.float64]

#: (canonical tokens, tokens instead); all others share the last column.
SHAPES = ((1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2))
KINDS = ("space", "word", "number", "other alphabet", "mixed")
_SHAPE_NAMES = (*(f"{old} to {new}" for old, new in SHAPES), "another shape")
_SPELLING_NAMES = (
    *KINDS,
    "leading space",
    "bytes",
    "share of first",
    "first is a space",
    "capital",
    "last of another kind",
)
_COMMONNESS_NAMES = ("old", "old first", "old rarest", "new", "new first", "new last", "new rarest")
_PLACE_NAMES = ("left joined", "right joined", "left", "right", "before", "behind")
_ALL_NAMES = (*_SHAPE_NAMES, *_SPELLING_NAMES, *_COMMONNESS_NAMES, *_PLACE_NAMES)
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
#: Keeps columns near 1, so that one penalty suits all.
SCALE = 5.0
#: Of a token without bytes, and beyond the ends of the text.
NO_TOKEN = -math.log(1000) / SCALE


def features(canonical: Sequence[int], edits: Sequence[Edit], vocabulary: Vocabulary) -> Matrix:
    """One row an edit, one column a name."""
    if not edits:
        return np.empty((0, len(NAMES)))
    pairs = np.array([_of_pair(vocabulary, edit.old, edit.new) for edit in edits])
    every = np.concatenate([pairs, _Surroundings(canonical, vocabulary).of(edits)], axis=1)
    splits = np.array([len(edit.old) == 1 for edit in edits], dtype=float)
    return np.concatenate([every, every * splits[:, None]], axis=1)


@lru_cache(maxsize=1 << 17)
def _of_pair(vocabulary: Vocabulary, old: Ids, new: Ids) -> tuple[float, ...]:
    """The columns that do not depend on the place: the same edits come again and again."""
    return (*_shape(old, new), *_spelling(old, new, vocabulary), *_commonness(old, new))


def common(token: int) -> float:
    """Logarithm of how often a token is written, up to a constant."""
    return -math.log(30 + token) / SCALE


def kind(spelling: bytes) -> int:
    """Place in `KINDS`."""
    bare = spelling.removeprefix(b" ")
    if spelling.isspace():
        return 0
    if bare.isdigit():
        return 2
    if not bare.isascii():
        return 3
    return 1 if bare.isalpha() else 4


def _shape(old: Ids, new: Ids) -> Iterator[float]:
    shape = (len(old), len(new))
    yield from (float(shape == known) for known in SHAPES)
    yield float(shape not in SHAPES)


def _spelling(old: Ids, new: Ids, vocabulary: Vocabulary) -> Iterator[float]:
    text = vocabulary.text(old)
    first, last = vocabulary.bytes_of[new[0]], vocabulary.bytes_of[new[-1]]
    yield from (float(kind(text) == number) for number in range(len(KINDS)))
    yield float(text.startswith(b" "))
    yield len(text) / SCALE
    yield len(first) / len(text)
    yield float(first == b" ")
    yield float(text.lstrip()[:1].isupper())
    yield float(len(new) > 1 and kind(last) != kind(text))


def _commonness(old: Ids, new: Ids) -> Iterator[float]:
    olds, news = [common(token) for token in old], [common(token) for token in new]
    yield from (sum(olds), olds[0], min(olds))
    yield from (sum(news), news[0], news[-1], min(news))


@dataclass(frozen=True)
class Evidence:
    """What one pass of the target over the text says, as log-probabilities."""

    #: Of each token of the text.
    written: Sequence[float]
    #: Of each edit's first new token, at its place.
    first: Sequence[float]


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
        common_of = [
            NO_TOKEN if spelling is None else common(token)
            for token, spelling in zip(canonical, spellings, strict=True)
        ]
        # Padded by one at each end, so that nothing below asks where the text ends.
        padded = [b"", *(spelling or b"" for spelling in spellings), b""]
        self._common = np.array([NO_TOKEN, *common_of, NO_TOKEN])
        #: Whether a word runs on across the boundary before canonical token n.
        self._joined = np.array(
            [a[-1:].isalpha() and b[:1].isalpha() for a, b in itertools.pairwise(padded)],
            dtype=float,
        )
        self._mean = _means(np.array(common_of))

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
