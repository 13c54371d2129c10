"""Near-duplicate prompts by MinHash and banding.

In: the words of prompts, one after the other; then which of them compete, best first. Out: which
are nearly another's. Two prompts are nearly the same when the shingles (runs of five words) that
they share are at least `threshold` of all that they have, as 128 minima estimate it (standard
error 0.04 at 0.8). Memory: signatures lie in a file, 512 bytes a prompt; one band is looked at at
a time, 16 bytes a prompt. It knows nothing of runs or samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from gpu_stage.merge.words import Numbers, ngrams, scrambled

SHINGLE_WORDS = 5
MINIMA = 128
ROW_BYTES = 4 * MINIMA
#: Shingles looked at at once: 4 MB.
CHUNK = 4096
#: Rows of a band from which it is chosen, most selective first, and the share of pairs at the
#: threshold that must meet in one.
BAND_ROWS = (16, 8, 4, 2, 1)
RECALL = 0.9
#: Two prompts without words have nothing in common.
NOTHING = np.uint32(0xFFFFFFFF)

Places = npt.NDArray[np.int64]
Minima = npt.NDArray[np.uint32]


class Signatures:
    """Writes the signature of each prompt to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        #: Each minimum is over another order of the shingles: those of a·x + b modulo 2^64.
        self._factors = scrambled(np.arange(MINIMA, dtype=np.uint64)) | np.uint64(1)
        self._shifts = scrambled(self._factors)

    def __enter__(self) -> Signatures:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, texts: Sequence[Sequence[str]]) -> None:
        """Write the next prompt's signature."""
        self._file.write(self._minima([word for words in texts for word in words]).tobytes())

    def _minima(self, words: Sequence[str]) -> Minima:
        shingles = np.unique(ngrams(words, SHINGLE_WORDS))
        least = np.full(MINIMA, NOTHING, np.uint32)
        for start in range(0, len(shingles), CHUNK):
            some = shingles[start : start + CHUNK, None] * self._factors + self._shifts
            high = (some >> np.uint64(32)).astype(np.uint32)
            least = np.minimum(least, high.min(axis=0))
        return least


def near_duplicates(path: Path, candidates: Places, threshold: float) -> Places:
    """Those of the candidates whose prompt is nearly that of a better one.

    Args:
        path: the signatures.
        candidates: places of prompts in that file, the better ones first.
    """
    signatures = np.memmap(path, np.uint32, "r", shape=(path.stat().st_size // ROW_BYTES, MINIMA))
    rows = _band_rows(threshold)
    left = np.arange(len(candidates))
    for start in range(0, MINIMA, rows):
        keys = _band(signatures, candidates[left], start, rows)
        members, leaders = _pairs(keys)
        alike = _alike(signatures, candidates[left[members]], candidates[left[leaders]], threshold)
        left = np.delete(left, members[alike])
    return np.delete(candidates, left)


def _band_rows(threshold: float) -> int:
    """As many as still let pairs at the threshold meet."""

    def recall(rows: int) -> float:
        return float(1 - (1 - threshold**rows) ** (MINIMA // rows))

    return next((rows for rows in BAND_ROWS if recall(rows) >= RECALL), 1)


def _band(signatures: Minima, places: Places, start: int, rows: int) -> Numbers:
    """One number for a band of each prompt."""
    keys = np.zeros(len(places), np.uint64)
    for column in range(start, start + rows):
        keys = scrambled(keys ^ signatures[places, column].astype(np.uint64))
    return keys


def _pairs(keys: Numbers) -> tuple[Places, Places]:
    """Each prompt that is not the first of its band's value, and that first."""
    order = np.argsort(keys, kind="stable")
    first = np.r_[True, keys[order][1:] != keys[order][:-1]] if len(keys) else np.empty(0, bool)
    leaders = order[np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))]
    return order[~first], leaders[~first]


def _alike(signatures: Minima, a: Places, b: Places, threshold: float) -> npt.NDArray[np.bool_]:
    """Whether pairs of prompts are alike, by the share of minima that they have in common."""
    alike = np.zeros(len(a), bool)
    for start in range(0, len(a), CHUNK):
        some = slice(start, start + CHUNK)
        one, other = signatures[a[some]], signatures[b[some]]
        same = (one == other) & (one != NOTHING)
        alike[some] = same.mean(axis=1) >= threshold
    return alike
