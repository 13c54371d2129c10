"""Texts that Kimi's tokenizer cuts before it splits them into words."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tokens.tiktoken_codec import LONGEST_RUN, LONGEST_TEXT, cut, has_long_run

LENGTHS = [1, 7, LONGEST_RUN // 2, LONGEST_RUN - 1, LONGEST_RUN, LONGEST_RUN + 1]
RUNS = st.lists(st.sampled_from(LENGTHS), max_size=12)


@settings(deadline=None)
@given(runs=RUNS, begins_with_space=st.booleans())
def test_a_text_that_seems_to_have_no_long_run_is_not_cut(
    runs: list[int], begins_with_space: bool
) -> None:
    """The quick look never misses what the slow one would cut."""
    letters = (" ", "x") if begins_with_space else ("x", " ")
    text = "".join(letters[at % 2] * length for at, length in enumerate(runs))
    if len(text) <= LONGEST_TEXT and not has_long_run(text):
        assert [piece for piece in cut(text) if piece] == [text] * bool(text)


def test_long_texts_of_short_words_are_seen_to_have_no_long_run() -> None:
    """Which is what the quick look is for."""
    assert not has_long_run("word " * 50_000)
    assert has_long_run("x" * (LONGEST_RUN + 1))
