"""What an edit replaces and what it puts there, as numbers; where it stands is left out.

In: edits. Out: a matrix, one row an edit, one column a name of `PAIR_NAMES`. How common a token
is comes from its id alone: byte-pair vocabularies are numbered in the order of their merges, and
that follows Zipf's law closely enough. Counts of tokens in 90,000 sampled ones did no better.
Whole columns at once, since a text of 2,000 tokens has 14,000 edits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tokens.segmentation import Edit, Ids, Vocabulary

Matrix = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

#: (canonical tokens, tokens instead); all others share the last column.
SHAPES = ((1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2))
KINDS = ("space", "word", "number", "other alphabet", "mixed")
PAIR_NAMES = (
    *(f"{old} to {new}" for old, new in SHAPES),
    "another shape",
    *KINDS,
    "leading space",
    "bytes",
    "share of first",
    "first is a space",
    "capital",
    "last of another kind",
    "old",
    "old first",
    "old rarest",
    "new",
    "new first",
    "new last",
    "new rarest",
)

#: Keeps columns near 1, so that one penalty suits all.
SCALE = 5.0


def pair_features(edits: Sequence[Edit], vocabulary: Vocabulary) -> Matrix:
    """One row an edit, one column a name."""
    # What is replaced is looked at once for the many edits that replace it.
    numbers: dict[Ids, int] = {}
    number = np.array([numbers.setdefault(edit.old, len(numbers)) for edit in edits])
    old, new = _padded(list(numbers)), _padded([edit.new for edit in edits])
    text = np.array([_text(vocabulary, ids) for ids in numbers])[number]
    olds, old_first, _, old_rarest = (column[number] for column in _commonness(old))
    columns = (
        *_shape(_sizes(old)[number], _sizes(new)),
        *_spelling(edits, text, vocabulary),
        *(olds, old_first, old_rarest),
        *_commonness(new),
    )
    return np.stack(columns, axis=1)


def common(tokens: Numbers) -> Matrix:
    """Logarithm of how often each token is written, up to a constant."""
    logarithms: Matrix = -np.log(30 + tokens) / SCALE
    return logarithms


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


def _padded(stretches: Sequence[Ids]) -> Numbers:
    """One row a stretch, -1 behind its ids."""
    width = max(map(len, stretches))
    none = (-1,) * width
    return np.array([(ids + none)[:width] for ids in stretches])


def _sizes(padded: Numbers) -> Numbers:
    sizes: Numbers = (padded >= 0).sum(axis=1)
    return sizes


def _shape(old: Numbers, new: Numbers) -> Iterator[Matrix]:
    shapes = np.array([(old == olds) & (new == news) for olds, news in SHAPES])
    yield from shapes.astype(float)
    yield (~shapes.any(axis=0)).astype(float)


@lru_cache(maxsize=1 << 16)
def _text(vocabulary: Vocabulary, ids: Ids) -> tuple[int, int, bool, bool]:
    """Kind, bytes, whether it starts with a space, with a capital."""
    text = vocabulary.text(ids)
    return kind(text), len(text), text.startswith(b" "), text.lstrip()[:1].isupper()


@lru_cache(maxsize=1 << 16)
def _token(vocabulary: Vocabulary, token: int) -> tuple[int, int]:
    """Kind and bytes."""
    spelling = vocabulary.bytes_of[token]
    return kind(spelling), len(spelling)


def _spelling(edits: Sequence[Edit], text: Numbers, vocabulary: Vocabulary) -> Iterator[Matrix]:
    """`text`: of each edit, as `_text` has it."""
    own, length, spaced, capital = text.T.astype(float)
    first = np.array([_token(vocabulary, edit.new[0])[1] for edit in edits])
    last = np.array([_token(vocabulary, edit.new[-1])[0] for edit in edits])
    several = np.array([len(edit.new) > 1 for edit in edits])
    space = vocabulary.id_of.get(b" ")
    yield from ((own == number).astype(float) for number in range(len(KINDS)))
    yield spaced
    yield length / SCALE
    yield first / length
    yield np.array([float(edit.new[0] == space) for edit in edits])
    yield capital
    yield (several & (last != own)).astype(float)


def _commonness(padded: Numbers) -> Iterator[Matrix]:
    """Of all ids together, the first, the last, the rarest."""
    there = padded >= 0
    values = np.where(there, common(padded), 0.0)
    yield values.sum(axis=1)
    yield values[:, 0]
    yield values[np.arange(len(padded)), _sizes(padded) - 1]
    yield values.min(axis=1)
