"""Responses with status 200: what is an answer, what is none, and what each cost."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers import errors
from workers.answers import Allowed, Answer, read_answer
from workers.errors import RequestError

KEEP_ALIVE = b"\n         \n"
MODEL = "moonshotai/kimi-k2.5"
ALLOWED = Allowed(MODEL)
SAMPLES = Path(__file__).parents[3] / "shared/data/openrouter_samples"
MESSAGE = {"role": "assistant", "content": "Oi!", "refusal": None, "reasoning": "Greet."}
USAGE = {"prompt_tokens": 21, "completion_tokens": 202, "total_tokens": 223, "cost": 0.00045364}
REPLY: dict[str, Any] = {
    "id": "gen-1777319885-pLuUvaQdB3l6lRlhlKuv",
    "object": "chat.completion",
    "created": 1777319885,
    "model": "moonshotai/kimi-k2.5-0127",
    "provider": "Inceptron",
    "choices": [{"index": 0, "logprobs": None, "finish_reason": "stop", "message": MESSAGE}],
    "usage": USAGE,
}


def read(value: Any, allowed: Allowed = ALLOWED) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_answer(200, {}, KEEP_ALIVE * 9 + body, allowed)


def no_answer(value: Any, allowed: Allowed = ALLOWED) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(value, allowed)
    return caught.value


def reply(**changes: Any) -> dict[str, Any]:
    """The good reply with changes to its message, its choice (`finish_reason`) or itself."""
    changed = REPLY | {k: v for k, v in changes.items() if k in REPLY}
    message = MESSAGE | changes.get("message", {})
    choice = REPLY["choices"][0] | {"message": message} | changes.get("choice", {})
    return changed if "choices" in changes else changed | {"choices": [choice]}


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded samples (../shared) are absent")
@pytest.mark.parametrize(
    ("name", "provider", "finish_reason", "tokens", "cost", "calls"),
    [
        ("simple_0", "Inceptron", "stop", (21, 202), 0.00045364, 0),
        ("tool_0", "Chutes", "tool_calls", (69, 66), 0.00016236, 1),
        ("tool_1", "Chutes", "stop", (108, 67), 0.00018152, 0),
        ("multi_tool_0", "Chutes", "tool_calls", (129, 86), 0.00022876, 2),
    ],
)
def test_recorded_responses_are_answers(
    name: str, provider: str, finish_reason: str, tokens: tuple[int, int], cost: float, calls: int
) -> None:
    """Recorded traffic, keep-alives and all, gives exactly what it says."""
    body = (SAMPLES / f"{name}.response.body").read_bytes()
    answer = read_answer(200, {}, body, Allowed(MODEL, frozenset({provider})))
    sent = json.loads(body)["choices"][0]["message"]
    assert answer == Answer(
        body=body,
        provider=provider,
        finish_reason=finish_reason,
        prompt_tokens=tokens[0],
        completion_tokens=tokens[1],
        cost_usd=cost,
        message={"role": "assistant", "content": sent["content"] or ""}
        | ({"tool_calls": sent["tool_calls"]} if calls else {}),
        suspect=None,
    )
    assert len(answer.message.get("tool_calls", [])) == calls


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded samples (../shared) are absent")
@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*streaming*.body")), ids=lambda p: p.stem)
def test_a_stream_that_nobody_asked_for_is_not_json(path: Path) -> None:
    """Server-sent events are no answer to a request that did not ask for them."""
    error = no_answer(path.read_bytes())
    assert type(error) is errors.NotJson
    assert error.details.may_be_billed


NO_ANSWERS: dict[str, tuple[Any, type[RequestError], float, bool]] = {
    "nothing": (b"", errors.EmptyBody, 0, True),
    "60 keep-alives": (KEEP_ALIVE * 60, errors.EmptyBody, 0, True),
    "cut JSON": (json.dumps(REPLY).encode()[:300], errors.NotJson, 0, True),
    "HTML": (b"<!DOCTYPE html><title>Cloudflare</title>", errors.NotJson, 0, True),
    "an array": ([REPLY], errors.NotJson, 0, True),
    "a text": ("ok", errors.NotJson, 0, True),
    "a number": (42, errors.NotJson, 0, True),
    "null": (None, errors.NotJson, 0, True),
    "bad UTF-8": (b'{"choices": "\xff"}', errors.NotJson, 0, True),
    "nested without end": (b"[" * 100_000, errors.NotJson, 0, True),
    "an empty object": ({}, errors.NoChoices, 0, False),
    "choices null": ({"choices": None, "error": None}, errors.NoChoices, 0, False),
    "choices null, paid": (reply(choices=None), errors.NoChoices, 0.00045364, False),
    "choices empty": (reply(choices=[]), errors.NoChoices, 0.00045364, False),
    "choices a text": (reply(choices="x"), errors.NoChoices, 0.00045364, False),
    "choice null": (reply(choices=[None]), errors.NoChoices, 0.00045364, False),
    "finish error": (reply(choice={"finish_reason": "error"}), errors.Unfinished, 4.5364e-4, False),
    "finish null": (reply(choice={"finish_reason": None}), errors.Unfinished, 4.5364e-4, False),
    "finish null, no usage": (
        reply(choice={"finish_reason": None}, usage=None), errors.Unfinished, 0, True,
    ),
    "finish error, no usage": (
        reply(choice={"finish_reason": "error"}, usage=None), errors.Unfinished, 0, False,
    ),
    "finish unknown": (reply(choice={"finish_reason": "eos"}), errors.Unfinished, 4.5364e-4, False),
    "finish a list": (reply(choice={"finish_reason": []}), errors.Unfinished, 4.5364e-4, False),
    "message null": (reply(choice={"message": None}), errors.Unfinished, 4.5364e-4, False),
    "an error in the choice": (
        reply(choice={"error": {"code": 502, "message": "x"}}), errors.Unfinished, 4.5364e-4, False,
    ),
    "another model": (reply(model="moonshotai/kimi-k2"), errors.WrongProvider, 4.5364e-4, False),
    "no model": (reply(model=None), errors.WrongProvider, 4.5364e-4, False),
    "another model, no usage": (
        reply(model="moonshotai/kimi-k2", usage={}), errors.WrongProvider, 0, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer_says_so_and_keeps_its_cost(name: str) -> None:
    """Each gives its class, what it cost, and whether it may be billed all the same."""
    value, kind, cost, may_be_billed = NO_ANSWERS[name]
    error = no_answer(value)
    assert type(error) is kind
    assert (error.details.cost_usd, error.details.may_be_billed) == (cost, may_be_billed)


def test_an_answer_nested_under_provider_is_read() -> None:
    """Seen: null fields at the top and the whole completion in `provider`."""
    nested = {"id": None, "choices": None, "model": None, "object": None, "provider": REPLY}
    answer = read(nested)
    assert (answer.provider, answer.completion_tokens) == ("Inceptron", 202)


def test_an_endpoint_that_was_not_allowed_is_refused_though_it_answered() -> None:
    """The provider's display name is held against the allowed ones; the money is kept."""
    allowed = Allowed(MODEL, frozenset({"Chutes", "Parasail"}))
    error = no_answer(REPLY, allowed)
    assert type(error) is errors.WrongProvider
    assert error.details.provider == "Inceptron"
    assert error.details.cost_usd == USAGE["cost"]
    assert "Chutes, Parasail" in str(error)
    assert type(no_answer(reply(provider=None), allowed)) is errors.WrongProvider


@pytest.mark.parametrize(
    ("asked", "answered", "same"),
    [
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5", True),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5-0127", True),
        ("moonshotai/Kimi-K2.5:floor", "moonshotai/kimi-k2.5-0127", True),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5-0127:free", True),
        ("moonshotai/kimi-k2-thinking", "moonshotai/kimi-k2-thinking-20251106", True),
        ("qwen/qwen3-coder", "qwen/qwen3-coder-480b-a35b-07-25", True),
        ("moonshotai/kimi-k2", "moonshotai/kimi-k2.5-0127", False),
        ("moonshotai/kimi-k2", "moonshotai/kimi-k2-thinking-20251106", False),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.6-20260420", False),
        ("moonshotai/kimi-k2.5", "other/kimi-k2.5", False),
    ],
)
def test_the_model_answered_is_the_one_asked_for(asked: str, answered: str, same: bool) -> None:
    """A date or size may follow the name; another version or sort of the model may not."""
    if same:
        assert read(reply(model=answered), Allowed(asked))
    else:
        assert type(no_answer(reply(model=answered), Allowed(asked))) is errors.WrongProvider


@pytest.mark.parametrize(
    ("value", "suspect"),
    [
        (reply(), None),
        (reply(message={"content": "<|tool_calls_section_begin|>x"}), "tool markup in the text"),
        (reply(message={"reasoning": "a <|tool_call_begin|>"}), "tool markup in the text"),
        (reply(message={"content": "a</think>b"}), "leaked </think>"),
        (
            reply(message={"reasoning": None, "reasoning_details": [{"text": "a</think>"}]}),
            "leaked </think>",
        ),
        (reply(choice={"finish_reason": "content_filter"}), "content filter"),
        (reply(message={"content": ""}), "empty content"),
        (reply(message={"content": None}, choice={"finish_reason": "length"}), "empty content"),
        (reply(message={"content": None, "tool_calls": [{"id": "f:0"}]}), None),
        (reply(message={"content": "\ud83d"}), "half a character"),
        (reply(usage=None), "no token count"),
        (reply(message={"content": [{"type": "text", "text": "Oi"}, {"text": "!"}]}), None),
        (reply(message={"content": {"x": 1}}), "empty content"),
        (reply(message={"reasoning": 5, "content": 5}), "empty content"),
    ],
)
def test_a_text_that_may_not_be_the_targets_is_marked(value: Any, suspect: str | None) -> None:
    """Markup that leaked, an answer that is empty or cannot be counted: kept, and marked."""
    assert read(value).suspect == suspect


def test_the_answer_in_a_later_request_is_text_without_its_reasoning() -> None:
    """Parts are joined, half characters replaced: what the next turn sends always encodes."""
    parts = [{"type": "text", "text": "Oi"}, {"type": "text", "text": "\ud83d!"}]
    message = read(reply(message={"content": parts, "tool_calls": []})).message
    assert message == {"role": "assistant", "content": "Oi?!"}
    calls = [{"function": {"name": "f", "arguments": "\ud83d"}}]
    assert msgspec.json.encode(read(reply(message={"tool_calls": calls})).message)


@pytest.mark.parametrize(
    ("spelt", "cost", "tokens"),
    [
        ("1", 1.0, 1),
        ("0", 0.0, 0),
        ("-1", None, 0),
        ("NaN", None, 0),
        ("Infinity", None, 0),
        ("1e999", None, 0),
        ("1e300", None, 0),
        ("9" * 400, None, 0),
        ("true", None, 0),
        ("null", None, 0),
        ('"3"', None, 0),
        ("[3]", None, 0),
    ],
)
def test_an_impossible_number_is_not_believed(spelt: str, cost: float | None, tokens: int) -> None:
    """A cost or count that cannot be is unknown: it neither crashes nor moves the ledger."""
    spelling = json.dumps(REPLY).replace("0.00045364", spelt).replace("202", spelt)
    answer = read(spelling.replace("21,", f"{spelt},").encode())
    assert (answer.cost_usd, answer.prompt_tokens, answer.completion_tokens) == (
        cost, tokens, tokens,
    )  # fmt: skip


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
ERROR_KEYS = ["error", "code", "message", "metadata", "raw", "availability", "retry_after"]
LIMIT_KEYS = ["headers", "reasons", "excluded_by", "constraint", "limit_source", "field"]
ANSWER_KEYS = ["choices", "provider", "usage", "cost", "model", "content", "tool_calls"]
KNOWN = st.sampled_from([*ERROR_KEYS, *LIMIT_KEYS, *ANSWER_KEYS])
replies = st.recursive(
    anything | st.sampled_from(["stop", "error", "moonshotai/kimi-k2.5", 429, 402, 404]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KNOWN, inner, max_size=6),
    max_leaves=20,
)
statuses = st.sampled_from([200, 204, 302, 400, 401, 402, 403, 404, 413, 429, 500, 503, 524])
headers = st.dictionaries(st.sampled_from(["Retry-After", "Date"]), st.text(max_size=12))


def check(status: int, headers: dict[str, str], body: bytes) -> None:
    try:
        result: Answer | RequestError = read_answer(status, headers, body, ALLOWED)
    except RequestError as error:
        result = error
    if isinstance(result, Answer):
        assert msgspec.json.encode(result.message)
        return
    wait_s = result.details.retry_after_s
    assert str(result).encode()
    assert 0 <= result.details.cost_usd <= 1000
    assert wait_s is None or 0 < wait_s <= 3600


@given(statuses, headers, st.binary(max_size=60))
def test_any_bytes_give_an_answer_or_a_request_error(
    status: int, headers: dict[str, str], body: bytes
) -> None:
    """Whatever comes, nothing else is raised."""
    check(status, headers, body)


@given(statuses, headers, replies)
def test_any_json_gives_an_answer_or_a_request_error(
    status: int, headers: dict[str, str], value: Any
) -> None:
    """JSON of the known keys in any shape, nothing else is raised."""
    check(status, headers, json.dumps(value).encode())


@given(replies, replies, replies)
def test_any_answer_shape_gives_an_answer_or_a_request_error(
    message: Any, usage: Any, choice: Any
) -> None:
    """A good frame with anything in its message and usage, nothing else is raised."""
    value = REPLY | {"usage": usage}
    value["choices"] = [{"finish_reason": "stop", "message": {"content": message, **MESSAGE}}]
    if isinstance(message, dict):
        value["choices"][0]["message"] = message
    if isinstance(choice, dict):
        value["choices"][0] |= choice
    check(200, {}, json.dumps(value).encode())
