"""Ids found by a target's likelihood, and the edits that there are to choose from."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokens.edit_features import EVIDENCE_NAMES, NAMES, Evidence
from tokens.edit_pairs import PAIR_NAMES, SCALE, pair_features
from tokens.edit_prior import Prior
from tokens.recover import Effort, Text, by_prior, by_target
from tokens.segmentation import (
    MOST_CHANGE,
    MOST_NEW,
    MOST_OLD,
    Edit,
    Vocabulary,
    apply,
    difference,
    edits,
)

#: Words as byte-pair vocabularies have them: spaces stand only in front.
WORDS = Vocabulary(
    dict(enumerate([b"a", b"b", b" ", b"ab", b"ba", b"aba", b" a", b" ab", b" b", b"  "]))
)
SPECIAL = 99
word_ids = st.lists(st.sampled_from([*WORDS.bytes_of, SPECIAL]), min_size=1, max_size=6)
#: No feature counts, the target's evidence neither.
FLAT = Prior((0.0,) * len(NAMES + EVIDENCE_NAMES))
EVERY_EDIT = Effort(scored=10_000)


class Unigrams:
    """A target whose every token is independent of the others, so that gains are exact."""

    def __init__(self, log_p: Sequence[float]) -> None:
        self._log_p = {**dict(enumerate(log_p)), SPECIAL: 0.0}

    def of(self, ids: Sequence[int]) -> float:
        return sum(self._log_p[token] for token in ids)

    def evidence(self, ids: Sequence[int], edits: Sequence[Edit]) -> Evidence:
        first = [self._log_p[edit.new[0]] for edit in edits]
        return Evidence([self._log_p[token] for token in ids], first)

    def gains(self, ids: Sequence[int], edits: Sequence[Edit]) -> Sequence[float]:
        return [self.of(edit.new) - self.of(edit.old) for edit in edits]


targets = st.lists(st.floats(-8, 0), min_size=10, max_size=10).map(Unigrams)


def spellings(text: bytes) -> list[list[int]]:
    """Every way to spell a text."""
    if not text:
        return [[]]
    return [
        [token, *rest]
        for spelling, token in WORDS.id_of.items()
        if text.startswith(spelling)
        for rest in spellings(text[len(spelling) :])
    ]


def segmentations(ids: Sequence[int]) -> list[list[int]]:
    """Every way to spell the same text, special tokens in their places."""
    found: list[list[int]] = [[]]
    for special, run in itertools.groupby(ids, lambda token: token == SPECIAL):
        part = list(run)
        ways = [part] if special else spellings(WORDS.text(part))
        found = [before + way for before in found for way in ways]
    return found


@settings(deadline=None)
@given(word_ids)
def test_no_segmentation_within_the_limits_is_missed(ids: list[int]) -> None:
    """What leads to any segmentation is among the edits, but for those that are too large."""
    found = set(edits(ids, WORDS))
    for other in segmentations(ids):
        for edit in difference(ids, other, WORDS) or []:
            small = len(edit.old) <= MOST_OLD and len(edit.new) <= MOST_NEW
            if small and abs(edit.change) <= MOST_CHANGE:
                assert edit in found


@settings(deadline=None)
@given(word_ids, st.integers(-2, 2), targets)
def test_nothing_one_edit_away_is_likelier_than_what_the_target_finds(
    ids: list[int], gain: int, target: Unigrams
) -> None:
    """It spells the text in the billed number, and no single edit does so more likely."""
    found = by_target(Text(ids, len(ids) + gain), WORDS, FLAT, target, EVERY_EDIT)
    near = [apply(ids, [edit]) for edit in edits(ids, WORDS) if edit.change == gain]
    if found is None:
        assert gain
        assert not near
        return
    assert len(found.ids) == len(ids) + gain
    assert WORDS.text(found.ids) == WORDS.text(ids)
    likeliest = max(map(target.of, near), default=-math.inf)
    assert target.of(found.ids) >= likeliest - 1e-9


@settings(deadline=None)
@given(word_ids, targets)
def test_a_count_that_agrees_is_no_reason_to_keep_unlikely_ids(
    ids: list[int], target: Unigrams
) -> None:
    """With a target the ids may change though their number does not; never for the worse."""
    found = by_target(Text(ids, len(ids)), WORDS, FLAT, target, EVERY_EDIT)
    assert found is not None
    assert len(found.ids) == len(ids)
    assert target.of(found.ids) >= target.of(ids) - 1e-9


def test_the_target_finds_two_words_that_were_cut() -> None:
    """Two tokens short: each of two words was written in two, the likelier two of three."""
    written = {" a": -1.0, "b": -1.0, "a": -2.0}
    target = Unigrams([written.get(WORDS.text([n]).decode(), -6.0) for n in range(10)])
    aba, ab = WORDS.id_of[b"aba"], WORDS.id_of[b" ab"]
    once = Effort(scored=10_000, rounds=1)
    found = by_target(Text([ab, aba, ab], 5), WORDS, FLAT, target, once)
    assert found is not None
    cut = [WORDS.id_of[b" a"], WORDS.id_of[b"b"]]
    assert found.ids == [*cut, aba, *cut]


def test_a_count_far_off_is_left_alone() -> None:
    """Nine tokens more have another cause than sampling, though they could be had."""
    target, ids = Unigrams([0.0] * 10), [WORDS.id_of[b"aba"]] * 9
    for billed in (17, 18):
        found = by_target(Text(ids, billed), WORDS, FLAT, target, EVERY_EDIT)
        assert (found is None) == (billed == 18)
        found = by_prior(Text(ids, billed), WORDS, Prior((0.0,) * len(NAMES)))
        assert (found is None) == (billed == 18)


def test_an_edit_is_described_by_what_it_replaces_and_puts_there() -> None:
    """Each column by its name, of one edit; other edits beside it change nothing."""
    ab, cut = WORDS.id_of[b" ab"], (WORDS.id_of[b" a"], WORDS.id_of[b"b"])
    edit, others = Edit(0, (ab,), cut), list(edits([ab, ab, 2, 0, 1], WORDS))
    alone = pair_features([edit], WORDS)[0]
    assert (pair_features([*others, edit], WORDS)[-1] == alone).all()

    common = {token: -math.log(30 + token) / SCALE for token in (ab, *cut)}
    expected = {
        "1 to 2": 1.0,
        "word": 1.0,
        "leading space": 1.0,
        "bytes": 3 / SCALE,
        "share of first": 2 / 3,
        "old": common[ab],
        "old first": common[ab],
        "old rarest": common[ab],
        "new": common[cut[0]] + common[cut[1]],
        "new first": common[cut[0]],
        "new last": common[cut[1]],
        "new rarest": min(common[cut[0]], common[cut[1]]),
    }
    found = dict(zip(PAIR_NAMES, alone, strict=True))
    assert {name: value for name, value in found.items() if value} == pytest.approx(expected)
