"""Sampled ids found again from text and count, held to the truth.

By the prior alone, and for the first rows by the target's likelihood. What is tested was never
learned from: the prior of one half of `faithful` by prompt is tested on the other, that of `rtn4`
(the same model with coarser weights) on all of `faithful`. "In place" is the share of sampled
tokens that stand at their bytes in what was found. The time is that of Kimi's vocabulary.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import median
from typing import Any

import tokens
from benchmarks.smollm2_rows import DATA, Row, Rows
from benchmarks.smollm2_target import Target
from benchmarks.token_rows import KIMI
from emulator.backends.smollm2_weights import model_folder
from tokens.edit_prior import Known, Prior, learn
from tokens.recover import Effort, Recovered, Text, by_prior, by_target
from tokens.recovery import LEAST_CONFIDENCE, vocabulary_of
from tokens.segmentation import Vocabulary, edits

THRESHOLDS = (0.0, 0.1, LEAST_CONFIDENCE, 0.3, 0.5, 0.7, 0.9)
EFFORT = Effort(rounds=1)
#: Texts that are timed, and their tokens.
TIMED, TIMED_TOKENS = 40, 2_000
Find = Callable[[Row], Recovered | None]


@dataclass(frozen=True)
class Found:
    """What became of a row."""

    row: Row
    result: Recovered
    #: Sampled tokens at their place, in the canonical ids and in those found.
    before: int
    after: int

    @property
    def exact(self) -> bool:
        return self.result.ids == self.row.sampled


@dataclass(frozen=True)
class Worth:
    """Rows of which those in `changed` were given what was found; the others keep their ids."""

    rows: int
    off: int
    exact_before: int
    exact_after: int
    changed: int
    changed_exact: int
    #: Of the changed rows, share of sampled tokens at their place.
    in_place_before: float
    in_place_after: float


def measure(target_rows: int) -> dict[str, Any]:
    """What is found, by which means; empty where the data is absent.

    Args:
        target_rows: that the target reads, seconds each.
    """
    if not (DATA.is_dir() and KIMI.is_dir()):
        return {}
    data = Rows(model_folder())
    faithful, other = data.read("faithful"), prior_of(data.read("rtn4"), data.vocabulary)
    crossed = list(_crossed(faithful, data.vocabulary))
    from_other = find_all(faithful, _by(other, data.vocabulary), data.vocabulary)
    return {
        "least_confidence": LEAST_CONFIDENCE,
        "crossed": asdict(worth(crossed, _sure(crossed))),
        "other": asdict(worth(from_other, _sure(from_other))),
        "more": asdict(worth(crossed, [one for one in _confident(crossed) if not one.row.fewer])),
        "misled": _misled(faithful, other, data.vocabulary),
        "cuts": [_cut(crossed, threshold) for threshold in THRESHOLDS],
        "target": _by_target(data, faithful[:target_rows]),
        "timed_tokens": TIMED_TOKENS,
        "cpu_ms": _cpu_ms(other),
        "load": os.getloadavg()[0],
    }


def find_all(rows: Sequence[Row], find: Find, vocabulary: Vocabulary) -> list[Found]:
    """Each row, held to its truth; a row that is not found keeps its canonical ids."""
    found = []
    for row in rows:
        result = find(row) or Recovered(row.canonical, 0.0)
        truth = _placed(row.sampled, vocabulary)
        before, after = (
            len(truth & _placed(ids, vocabulary)) for ids in (row.canonical, result.ids)
        )
        found.append(Found(row, result, before, after))
    return found


def _placed(ids: Sequence[int], vocabulary: Vocabulary) -> set[tuple[int, int]]:
    """Tokens, each with the byte where it ends."""
    ends = accumulate(len(vocabulary.spelling(token)) for token in ids)
    return set(zip(ends, ids, strict=True))


def worth(found: Sequence[Found], changed: Sequence[Found]) -> Worth:
    canonical = sum(one.row.canonical == one.row.sampled for one in found)
    exact = sum(one.exact for one in changed)
    lost = sum(one.row.canonical == one.row.sampled for one in changed)
    sampled = sum(len(one.row.sampled) for one in changed) or 1
    return Worth(
        rows=len(found),
        off=sum(one.row.off for one in found),
        exact_before=canonical,
        exact_after=canonical - lost + exact,
        changed=len(changed),
        changed_exact=exact,
        in_place_before=sum(one.before for one in changed) / sampled,
        in_place_after=sum(one.after for one in changed) / sampled,
    )


def _sure(found: Iterable[Found], threshold: float = LEAST_CONFIDENCE) -> list[Found]:
    """Those that a sample would be given: fewer tokens were billed, the confidence is enough."""
    return [one for one in _confident(found, threshold) if one.row.fewer]


def _confident(found: Iterable[Found], threshold: float = LEAST_CONFIDENCE) -> Iterator[Found]:
    return (one for one in found if one.row.off and one.result.confidence >= threshold)


def _misled(rows: Iterable[Row], prior: Prior, vocabulary: Vocabulary) -> dict[str, int]:
    """Of rows that are right as they are, those that one token too few billed would change."""
    right = [row.canonical for row in rows if row.canonical == row.sampled]
    found = [by_prior(Text(ids, len(ids) - 1), vocabulary, prior) for ids in right]
    changed = [one for one in found if one and one.confidence >= LEAST_CONFIDENCE]
    return {"rows": len(right), "changed": len(changed)}


def _cut(found: Sequence[Found], threshold: float) -> dict[str, Any]:
    return {"threshold": threshold} | asdict(worth(found, _sure(found, threshold)))


def prior_of(rows: Iterable[Row], vocabulary: Vocabulary) -> Prior:
    return learn((Known(row.canonical, row.sampled) for row in rows), vocabulary)


def _by(prior: Prior, vocabulary: Vocabulary) -> Find:
    return lambda row: by_prior(Text(row.canonical, len(row.sampled)), vocabulary, prior)


def _crossed(rows: Sequence[Row], vocabulary: Vocabulary) -> Iterator[Found]:
    for half in (0, 1):
        prior = prior_of((row for row in rows if row.half != half), vocabulary)
        tried = [row for row in rows if row.half == half]
        yield from find_all(tried, _by(prior, vocabulary), vocabulary)


def _by_target(data: Rows, rows: Sequence[Row]) -> dict[str, Any]:
    """The target's likelihood; its prior is learned on as many rows of `rtn4`."""
    target, words = Target(model_folder()), data.vocabulary

    def known(row: Row) -> Known:
        reader = target.reader(row.prompt_ids, row.ending)
        found = list(edits(row.canonical, words))
        return Known(row.canonical, row.sampled, reader.evidence(row.canonical, found))

    def find(row: Row) -> Recovered | None:
        text = Text(row.canonical, len(row.sampled))
        return by_target(text, words, prior, target.reader(row.prompt_ids, row.ending), EFFORT)

    prior = learn(map(known, data.read("rtn4")[: len(rows)]), words)
    began = time.perf_counter()
    found = find_all(rows, find, words)
    seconds = (time.perf_counter() - began) / len(rows)
    changed = [one for one in found if one.result.ids != one.row.canonical]
    return asdict(worth(found, changed)) | {"scored": EFFORT.scored, "seconds": seconds}


def _cpu_ms(prior: Prior) -> float:
    """Of one text of `TIMED_TOKENS` Kimi tokens, whose count is off by one; the median."""
    kimi = tokens.load(KIMI)
    vocabulary = vocabulary_of(kimi)
    texts = Rows.texts("faithful")
    ids = [token for text in texts for token in kimi.encode(text)][: TIMED * TIMED_TOKENS]
    taken = []
    for start in range(0, len(ids), TIMED_TOKENS):
        text = ids[start : start + TIMED_TOKENS]
        began = time.process_time()
        by_prior(Text(text, len(text) + 1), vocabulary, prior)
        taken.append(time.process_time() - began)
    return 1000 * median(taken)
