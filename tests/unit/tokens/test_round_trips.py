"""What holds for every renderer: text comes back, and never turns into a special token."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import tokens

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TORTURE = [
    "e\u0301\u0323\u0316\u0489",  # combining marks, not in any normal form
    "\u212b\ufb01\u1e9b\u0323",  # what normalisation would replace
    "👩🏽‍👩🏿‍👧🏻‍👦🏼🏴󠁧󠁢󠁳󠁣󠁴󠁿🇺🇳",  # joined emoji, tags, flags
    "שָׁלוֹם\u202e\u2066مرحبًا\u2069\u200f",  # right to left, with overrides
    "\x00\x7f\x85\u2028\ufeff\ufffd\ufdd0\U0010ffff",  # controls, separators, noncharacters
    "  \t \n\r\n\n  \u00a0\u3000",
    "I'VE don't 's''ll 1234567890 ٣٤٥ Ⅷ ½",
    "漢字カタカナ한국어ไทยहिन्दी",
    "<|im_end|><|im_user|></think><think><|tool_calls_section_begin|>",
    "<|im_start|><tool_call><|eot_id|><｜User｜><｜end▁of▁sentence｜>[EOS]",
    "<|im_<|im_end|>end|><|reserved_token_163600|>",
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(TORTURE), st.text(st.characters(exclude_categories=["Cs"]))),
    max_size=6,
).map("".join)


def spellable(renderer: tokens.Renderer, text: str) -> bool:
    """Whether every byte of a text is in the vocabulary; SmolLM2's lacks a few."""
    return all(bytes([byte]) in renderer.ids_by_bytes for byte in set(text.encode()))


def special_ids(renderer: tokens.Renderer) -> set[int]:
    """The ids that no plain text may have."""
    return set(renderer.codec.special.values())  # type: ignore[attr-defined]


@SETTINGS
@given(text=TEXTS)
def test_text_comes_back_byte_for_byte(renderer: tokens.Renderer, text: str) -> None:
    """decode(encode(text)) is the text, whatever Unicode it holds."""
    assume(spellable(renderer, text))
    ids = renderer.encode(text)
    assert renderer.decode(ids) == text
    assert not special_ids(renderer) & set(ids)


@SETTINGS
@given(text=TEXTS)
def test_an_answer_comes_back_with_its_end(renderer: tokens.Renderer, text: str) -> None:
    """A completion spells the answer's content and ends in the end token."""
    assume(spellable(renderer, text))
    ids = renderer.completion(tokens.Answer(text), thinking=False)
    assert ids[-1] == renderer.end_id
    assert renderer.decode(ids[:-1]).endswith(text)


@SETTINGS
@given(text=TEXTS)
def test_a_prompt_has_no_more_special_tokens_than_its_template(
    renderer: tokens.Renderer, text: str
) -> None:
    """What a user wrote adds no special token to a prompt, however it is spelt."""
    special = special_ids(renderer)
    plain, odd = (
        [n for n in renderer.prefix(tokens.Prompt([message])) if n in special]
        for message in ({"role": "user", "content": "x"}, {"role": "user", "content": text})
    )
    assert odd == plain


def test_look_alikes_stay_in_the_prompt_as_text(renderer: tokens.Renderer) -> None:
    """A prompt that spells special tokens still spells them, all of it text."""
    text = "".join(TORTURE[-3:])
    tool = {"name": text, "description": text, "parameters": {"type": "object", "properties": {}}}
    prompt = tokens.Prompt([{"role": "user", "content": text}])
    assert text in renderer.decode(renderer.prefix(prompt))
    declared = tokens.Prompt(
        [{"role": "user", "content": "x"}], [{"type": "function", "function": tool}]
    )
    bare = tokens.Prompt(
        declared.messages,
        [{"type": "function", "function": {**tool, "name": "f", "description": "d"}}],
    )
    special = special_ids(renderer)
    assert [n for n in renderer.prefix(declared) if n in special] == [
        n for n in renderer.prefix(bare) if n in special
    ]


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "\udc00\ud83d"])
def test_half_a_surrogate_pair_is_refused(renderer: tokens.Renderer, text: str) -> None:
    """Text that UTF-8 cannot hold is refused with its place, never replaced."""
    with pytest.raises(tokens.HalfCharacter, match="half a surrogate pair"):
        renderer.encode(text)
    with pytest.raises(tokens.HalfCharacter):
        renderer.prefix(tokens.Prompt([{"role": "user", "content": text}]))
    with pytest.raises(tokens.HalfCharacter):
        renderer.completion(tokens.Answer(text))


@pytest.mark.parametrize("character", ["a", " ", "1", "界"])
def test_a_megabyte_of_one_character_takes_no_quadratic_time(
    renderer: tokens.Renderer, character: str
) -> None:
    """Long runs come back too, and the test's time limit is never near."""
    text = character * (1_000_000 // len(character.encode()))
    assert renderer.decode(renderer.encode(text)) == text


def test_a_megabyte_of_look_alikes_takes_no_quadratic_time(renderer: tokens.Renderer) -> None:
    """A prompt of nothing but spelt special tokens is rendered, all of it text."""
    text = "<|im_end|><｜User｜></think>" * 40_000
    ids = renderer.prefix(tokens.Prompt([{"role": "user", "content": text}]))
    assert text in renderer.decode(ids)


def test_counting_a_prompt_is_the_length_of_its_prefix(renderer: tokens.Renderer) -> None:
    """count_prefix agrees with prefix."""
    messages = [{"role": "user", "content": "How many?"}]
    assert renderer.count_prefix(messages) == len(renderer.prefix(tokens.Prompt(messages)))


def test_a_token_is_known_by_its_bytes(renderer: tokens.Renderer) -> None:
    """The bytes of a text's tokens are the text's, and lead back to the same ids."""
    ids = renderer.encode("Straße 42 🙂")
    spelt = [renderer.bytes_of(number) or b"" for number in ids]
    assert b"".join(spelt).decode() == "Straße 42 🙂"
    assert [renderer.ids_by_bytes[part] for part in spelt] == ids


def test_a_byte_that_no_token_has_is_refused(smollm2: tokens.Renderer) -> None:
    """Text is refused rather than shortened where the vocabulary cannot spell it."""
    with pytest.raises(tokens.Unrenderable, match="no token for the byte 0xF1"):
        smollm2.encode("\U00040000")


def test_a_vocabulary_that_would_change_a_text_refuses_it(
    tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    """SentencePiece vocabularies put a space before a text; what they cannot spell is refused."""
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((folder_of("llama3") / name).read_bytes())
    definition = json.loads((folder_of("llama3") / "tokenizer.json").read_bytes())
    small = Tokenizer(models.BPE({"▁": 0, "a": 1, "?": 2}, [], unk_token="?"))
    small.pre_tokenizer = pre_tokenizers.Metaspace()
    small.decoder = decoders.Metaspace()
    changed = {**json.loads(small.to_str()), "added_tokens": definition["added_tokens"]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    renderer = tokens.load(tmp_path)
    assert renderer.decode(renderer.encode("a a")) == "a a"
    assert renderer.bytes_of(1) is None
    for text in (" a", "b"):
        with pytest.raises(tokens.Unrenderable, match="the vocabulary spells"):
            renderer.encode(text)


@pytest.mark.parametrize(
    ("messages", "tools", "words"),
    [
        (["Hi"], None, "message 1 is no object with a role"),
        ([{"content": "Hi"}], None, "message 1 is no object with a role"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "1"}]}],
            None,
            "message 1: a tool call without",
        ),
        ([{"role": "user", "content": 3}], None, "content is int"),
        ([], [{"type": "function", "name": "f"}], "tool 1 is no object, or a function without"),
    ],
)
def test_a_conversation_of_another_shape_is_refused(
    renderer: tokens.Renderer, messages: Any, tools: Any, words: str
) -> None:
    """The message or the tool that cannot be rendered is named."""
    with pytest.raises(tokens.Unrenderable, match=words):
        renderer.count_prefix(messages, tools)
