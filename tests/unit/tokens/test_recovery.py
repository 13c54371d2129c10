"""Ids of samples whose count is off: other ids of the same text, as many as were billed."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokens
from tokens import Counts, Fidelity, Rules, Sample
from tokens.edit_features import NAMES
from tokens.edit_paths import likeliest
from tokens.edit_prior import Known, Prior, PriorError, learn
from tokens.recover import Text, by_prior
from tokens.recovery import Recovery, canonical_ids, learn_prior, vocabulary_of
from tokens.segmentation import Edit, Vocabulary, apply, difference, edits

FAITHFUL = Path(__file__).parents[4] / "shared" / "data" / "smollm2" / "faithful.parquet"
#: Every string of `a` and `b` up to three letters, and a special token without bytes.
TOY = Vocabulary(
    {
        number: "".join(letters).encode()
        for number, letters in enumerate(
            itertools.chain.from_iterable(itertools.product("ab", repeat=n) for n in (1, 2, 3))
        )
    }
)
SPECIAL = 99
toy_ids = st.lists(st.sampled_from([*TOY.bytes_of, SPECIAL]), min_size=1, max_size=6)
#: No feature counts: every edit is as likely as any other.
FLAT = Prior((0.0,) * len(NAMES))


def segmentations(ids: Sequence[int]) -> list[list[int]]:
    """Every way to spell the same text, special tokens in their places."""
    found: list[list[int]] = [[]]
    for special, run in itertools.groupby(ids, lambda token: token == SPECIAL):
        part = list(run)
        ways = [part] if special else _spell(TOY.text(part))
        found = [before + way for before in found for way in ways]
    return found


def _spell(text: bytes) -> list[list[int]]:
    if not text:
        return [[]]
    return [
        [TOY.id_of[text[:end]], *rest]
        for end in range(1, min(3, len(text)) + 1)
        for rest in _spell(text[end:])
    ]


@settings(deadline=None)
@given(toy_ids)
def test_edits_spell_the_same_bytes_and_leave_special_tokens_alone(ids: list[int]) -> None:
    """An edit is another segmentation, with no boundary of the old one inside it."""
    found = list(edits(ids, TOY))
    assert len(set(found)) == len(found)
    for edit in found:
        other = apply(ids, [edit])
        assert other != ids
        assert TOY.text(other) == TOY.text(ids)
        assert [t for t in other if t == SPECIAL] == [t for t in ids if t == SPECIAL]
        assert difference(ids, other, TOY) == [edit]


@settings(deadline=None)
@given(toy_ids, st.randoms(use_true_random=False))
def test_a_segmentation_is_one_set_of_edits(ids: list[int], random: Any) -> None:
    """What leads from the canonical ids to any other, applied, gives that other."""
    other = random.choice(segmentations(ids))
    made = difference(ids, other, TOY)
    assert made is not None
    assert apply(ids, made) == other
    assert all(a.end <= b.start for a, b in itertools.pairwise(made))


def test_other_bytes_have_no_difference() -> None:
    """A provider that changed the text is not a segmentation."""
    assert difference([0], [1], TOY) is None


scored = st.lists(
    st.tuples(
        st.integers(0, 4), st.integers(1, 3), st.sampled_from([-1, 0, 1, 2]), st.floats(-4, 2)
    ),
    max_size=6,
)


@settings(deadline=None)
@given(scored, st.integers(-2, 3))
def test_the_likeliest_set_is_the_best_of_all(
    drawn: list[tuple[int, int, int, float]], gain: int
) -> None:
    """Dynamic programming finds what trying every set finds, and the same total."""
    odds = [
        (Edit(start, (0,) * size, (0,) * max(1, size + change)), weight)
        for start, size, change, weight in drawn
    ]
    length = 8
    sums = []
    for count in range(len(odds) + 1):
        for chosen in itertools.combinations(odds, count):
            ordered = sorted(chosen, key=lambda one: one[0].start)
            apart = all(a.end <= b.start for (a, _), (b, _) in itertools.pairwise(ordered))
            if apart and sum(edit.change for edit, _ in chosen) == gain:
                sums.append(sum(weight for _, weight in chosen))
    found = likeliest(odds, length, gain)
    if not sums:
        assert found is None
        return
    assert found is not None
    assert found.log_weight == pytest.approx(max(sums))
    # Sets that stray further than the slack are left out of the total.
    assert found.log_total <= math.log(sum(map(math.exp, sums))) + 1e-9
    assert found.log_total >= found.log_weight - 1e-9


@settings(deadline=None)
@given(toy_ids, st.integers(-3, 3))
def test_what_is_found_spells_the_text_in_the_billed_number(ids: list[int], gain: int) -> None:
    """Whatever the prior; and nothing is found only where nothing is there within reach."""
    found = by_prior(Text(ids, len(ids) + gain), TOY, FLAT)
    if found is None:
        assert gain
        assert not any(edit.change == gain for edit in edits(ids, TOY))
        return
    assert len(found.ids) == len(ids) + gain
    assert TOY.text(found.ids) == TOY.text(ids)
    assert 0 < found.confidence <= 1


def test_a_prior_survives_its_file_and_refuses_others() -> None:
    """As JSON with a name for each weight; features of another version are not taken for these."""
    prior = Prior(tuple(n / 7 for n in range(len(NAMES))))
    assert Prior.from_json(prior.to_json()) == prior
    for text in ("", "[]", '{"a": 1}', '{"a": "x"}', prior.to_json().replace("bytes", "octets")):
        with pytest.raises(PriorError, match="learn it again"):
            Prior.from_json(text)


def test_nothing_is_learned_from_canonical_rows() -> None:
    """A model at temperature 0 teaches nothing of what one at 1 does."""
    with pytest.raises(PriorError, match="nothing to learn"):
        learn([Known([0, 1], [0, 1])], TOY)


@pytest.fixture(scope="module")
def sampled(smollm2: tokens.Renderer) -> list[tuple[Sample, Sample]]:
    """Recorded completions, each as an exact sample and as text alone gives it."""
    if not FAITHFUL.exists():
        pytest.skip("needs ../shared/data/smollm2")
    pairs = []
    for row in pq.read_table(FAITHFUL).to_pylist():
        prefix, ids = tuple(row["prompt_token_ids"]), tuple(row["token_ids"])
        canonical = canonical_ids(smollm2, ids)
        if canonical is not None:
            exact = _sample(prefix, ids, len(ids), Fidelity.EXACT)
            off = len(canonical) != len(ids)
            fidelity = Fidelity.NEAR if off else Fidelity.COUNTED
            pairs.append((exact, _sample(prefix, tuple(canonical), len(ids), fidelity)))
    return pairs


@pytest.fixture(scope="module")
def recovery(smollm2: tokens.Renderer, sampled: list[tuple[Sample, Sample]]) -> Recovery:
    """Learned on every second row; the others are to be tried."""
    return Recovery(smollm2, learn_prior(smollm2, [exact for exact, _ in sampled[::2]]))


def _sample(
    prefix: tuple[int, ...], ids: tuple[int, ...], billed: int, fidelity: Fidelity
) -> Sample:
    start = len(prefix)
    counts = Counts(start, start, len(ids), billed)
    spans = ((start, start + len(ids)),)
    return Sample(fidelity, counts, "P", "stop", (*prefix, *ids), start, spans)


def test_recovered_samples_are_nearer_to_the_sampled_ids(
    smollm2: tokens.Renderer, recovery: Recovery, sampled: list[tuple[Sample, Sample]]
) -> None:
    """Learned on one half, tried on the other: of those marked `recovered` most have exactly the
    sampled ids, where none had before, and more of their tokens are the sampled ones."""
    vocabulary = vocabulary_of(smollm2)
    pairs = [(exact, text, recovery.recovered(text, Rules())) for exact, text in sampled[1::2]]
    assert all(now is text for _, text, now in pairs if text.fidelity is Fidelity.COUNTED)
    changed = [pair for pair in pairs if pair[2].fidelity is Fidelity.RECOVERED]
    assert len(changed) >= 15

    right = sum(now.input_ids == exact.input_ids for exact, _, now in changed)
    assert right / len(changed) >= 0.5
    before, after = (
        sum(
            len(_placed(exact, vocabulary) & _placed(pair[place], vocabulary))
            for pair in changed
            for exact in pair[:1]
        )
        for place in (1, 2)
    )
    assert after > before
    for exact, _, now in changed:
        assert len(now.input_ids) == len(exact.input_ids)
        assert now.loss_spans == ((now.prompt_length, len(now.input_ids)),)
        assert now.confidence is not None
        assert now.confidence >= 0.2


def _placed(sample: Sample, vocabulary: Vocabulary) -> set[tuple[int, int]]:
    """Tokens of the completion, each with the byte where it ends."""
    ids = sample.input_ids[sample.prompt_length :]
    ends = itertools.accumulate(len(vocabulary.spelling(token)) for token in ids)
    return set(zip(ends, ids, strict=True))


def test_samples_billed_more_tokens_than_were_found_stay_as_they_are(
    recovery: Recovery, sampled: list[tuple[Sample, Sample]]
) -> None:
    """Which of the many splits was written the prior does not know."""
    more = [
        text
        for exact, text in sampled
        if text.fidelity is Fidelity.NEAR and len(exact.input_ids) > len(text.input_ids)
    ]
    assert more
    assert all(recovery.recovered(text, Rules()) is text for text in more)


def test_an_end_token_that_is_not_billed_is_taken_off_first(
    smollm2: tokens.Renderer, recovery: Recovery, sampled: list[tuple[Sample, Sample]]
) -> None:
    """One token fewer on every answer is no other segmentation."""
    rules = Rules(completion_offset=-1)
    ended = [s for _, s in sampled if s.input_ids[-1] == smollm2.end_id]
    for sample in ended[:20]:
        found = sample.counts.completion_found or 0
        billed = replace(sample.counts, completion_billed=found - 1)
        near = replace(sample, fidelity=Fidelity.NEAR, counts=billed)
        assert recovery.recovered(near, rules) is near


def test_a_prompt_that_is_off_is_not_made_up_for(
    recovery: Recovery, sampled: list[tuple[Sample, Sample]]
) -> None:
    """Another template is another reason to be `near`, and stays one."""
    near = next(
        text
        for _, text in sampled
        if recovery.recovered(text, Rules()).fidelity is Fidelity.RECOVERED
    )
    assert near.counts.prompt_found is not None
    off = replace(near, counts=replace(near.counts, prompt_billed=near.counts.prompt_found + 1))
    assert recovery.recovered(off, Rules()) is off


def test_canonical_ids_keep_special_tokens_in_their_places(
    renderer_of: Callable[[str], tokens.Renderer],
) -> None:
    """Text is tokenised anew between them, and a torn character has no canonical form."""
    qwen3 = renderer_of("qwen3")
    whole = qwen3.completion(tokens.Answer("Übergröße!", "Hm."))
    assert canonical_ids(qwen3, whole) == whole
    apart = [
        part
        for token in whole
        for part in (
            [token]
            if token in qwen3.special_ids
            else [qwen3.ids_by_bytes[bytes([b])] for b in qwen3.bytes_of(token) or b""]
        )
    ]
    assert len(apart) > len(whole)
    assert canonical_ids(qwen3, apart) == whole
    torn = [qwen3.ids_by_bytes[b"\xc3"]]
    assert canonical_ids(qwen3, torn) is None


@pytest.fixture(scope="module")
def kimi_words(kimi: tokens.Renderer) -> Vocabulary:
    """Kimi's ordinary tokens."""
    return vocabulary_of(kimi)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(min_size=1, max_size=60), gain=st.integers(-2, 2))
def test_kimi_s_vocabulary_is_byte_exact_too(
    kimi: tokens.Renderer, kimi_words: Vocabulary, text: str, gain: int
) -> None:
    """Any text: what is found has its bytes, and the asked number of ids."""
    try:
        ids = kimi.encode(text)
    except tokens.Unrenderable:
        return
    found = by_prior(Text(ids, len(ids) + gain), kimi_words, FLAT)
    if found is not None:
        assert len(found.ids) == len(ids) + gain
        assert kimi_words.text(found.ids) == kimi_words.text(ids)


def test_a_run_of_one_character_has_a_bounded_number_of_edits() -> None:
    """It can be read in thousands of ways at each place; the likeliest are among the few kept."""
    dashes = Vocabulary({n: b"-" * (n + 1) for n in range(16)})
    canonical = [15] * 112 + [7]
    found = list(edits(canonical, dashes))
    assert len(found) <= 3 * 64 * len(canonical)
    assert {len(edit.new) for edit in found if edit.start == 0 and len(edit.old) == 1} == {2, 3}
    assert by_prior(Text(canonical, len(canonical) + 1), dashes, FLAT) is not None


def test_odds_do_not_depend_on_how_many_are_looked_at_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scored in pieces, which bounds the memory, an edit's odds are the same."""
    ids = [0, 5, 9, 2, 7, 3]
    found = list(edits(ids, TOY))
    prior = Prior(tuple(0.01 * n for n in range(len(NAMES))))
    whole = prior.log_odds(ids, found, TOY)
    monkeypatch.setattr("tokens.edit_prior.EDITS_AT_ONCE", 7)
    assert len(found) > 14
    assert prior.log_odds(ids, found, TOY) == pytest.approx(whole)
