"""Judging a completion is total: whatever a body holds, there is a sample."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokens
from tokens import Fidelity, Prompt, Reason
from tokens.conversation import arguments_of


@pytest.fixture(scope="module")
def qwen(renderer_of: Callable[[str], tokens.Renderer]) -> tokens.Renderer:
    """A family with thoughts and tool calls."""
    return renderer_of("qwen3")


#: Names that the readers look for, so that odd values stand where they are read.
NAMES = st.sampled_from(
    "choices message delta logprobs content tool_calls function name arguments index token bytes "
    "token_ids reasoning reasoning_details type text usage prompt_tokens error provider created "
    "finish_reason".split()
)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("token_id:7")
json_values = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)
choices = st.fixed_dictionaries(
    {"message": st.dictionaries(NAMES, json_values, max_size=4), "finish_reason": st.just("stop")},
    optional={"logprobs": json_values, "token_ids": json_values, "error": json_values},
)
deltas = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": json_values, "logprobs": json_values}))}
)


@settings(deadline=None, max_examples=300)
@given(st.one_of(json_values, st.fixed_dictionaries({"choices": st.lists(choices, max_size=2)})))
def test_any_json_is_judged_without_the_net(qwen: tokens.Renderer, reply: Any) -> None:
    """Readers know what a body may hold; nothing is left to the last net."""
    body = json.dumps(reply if isinstance(reply, dict) else {"choices": reply})
    prompt = Prompt([{"role": "user", "content": "a"}])
    assert tokens.verify(qwen, prompt, tokens.read_body(body.encode()))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(deltas, json_values), min_size=1, max_size=3))
def test_any_stream_is_judged_without_the_net(qwen: tokens.Renderer, chunks: list[Any]) -> None:
    """The same of a stream's events."""
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in [{}, *chunks]).encode()
    prompt = Prompt([{"role": "user", "content": "a"}])
    assert tokens.verify(qwen, prompt, tokens.read_body(body))


def test_arguments_nested_too_deep_stay_text() -> None:
    """Python's reader gives up on them."""
    deep = "[" * 100_000
    assert arguments_of({"function": {"name": "f", "arguments": deep}}) == deep


def test_an_id_of_thousands_of_digits_is_no_id(qwen: tokens.Renderer) -> None:
    """Python refuses to read such a number."""
    entries = [{"token": "token_id:" + "9" * 5000}]
    reply = {
        "choices": [
            {"message": {"content": "a"}, "finish_reason": "stop", "logprobs": {"content": entries}}
        ]
    }
    sample = tokens.verify(qwen, Prompt([{"role": "user", "content": "a"}]), reply)
    assert sample.fidelity is Fidelity.UNVERIFIED


@pytest.mark.parametrize("error", [MemoryError, RecursionError, KeyError])
def test_what_was_not_foreseen_is_refused_by_its_type(error: type[Exception]) -> None:
    """Its words may hold text of the completion, and are left out."""

    def fail() -> tokens.Sample:
        raise error("secret text")

    sample = tokens.total(fail)
    assert (sample.fidelity, sample.reason) == (Fidelity.REJECTED, Reason.UNRENDERABLE)
    assert sample.detail == f"judging it failed: {error.__name__}"
