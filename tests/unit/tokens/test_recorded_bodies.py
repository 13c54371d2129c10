"""Recorded bodies: plain ones behind keep-alives, streams put together."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokens

Recorded = Callable[[str], tuple[dict[str, Any], dict[str, Any]]]


def stream(*chunks: Any, end: str = "data: [DONE]\n\n") -> bytes:
    """A stream of chunks, with a comment before each as OpenRouter sends them."""
    events = [f": OPENROUTER PROCESSING\n\ndata: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return ("".join(events) + end).encode()


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chunk with one delta."""
    return {
        "id": "gen-1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


def test_keep_alives_before_a_plain_body_are_passed_over() -> None:
    """OpenRouter sends white space while it waits."""
    assert tokens.read_body(b"\n         \n" * 60 + b'{"id": "gen-1"}\n') == {"id": "gen-1"}


@pytest.mark.parametrize("body", [b"", b"\n  \n", b"<html>", b": OPENROUTER PROCESSING\n\n", b"{"])
def test_a_body_that_is_neither_is_refused(body: bytes) -> None:
    """An empty body, a page, keep-alives alone and half an object are no response."""
    with pytest.raises(ValueError, match=r"neither JSON nor|Expecting"):
        tokens.read_body(body)


@pytest.mark.parametrize("name", ["simple", "tool", "multi_tool"])
def test_a_recorded_stream_has_the_shape_of_a_plain_response(recorded: Recorded, name: str) -> None:
    """Same keys, same types, whichever way the response came."""
    plain, streamed = recorded(f"{name}_0")[1], recorded(f"{name}_streaming_0")[1]
    assert streamed.keys() >= plain.keys() - {"system_fingerprint"}
    assert streamed["object"] == plain["object"] == "chat.completion"
    for one, other in ((plain, streamed), (plain["usage"], streamed["usage"])):
        for key in one.keys() & other.keys():
            assert isinstance(other[key], type(one[key]))
    (one,), (other,) = plain["choices"], streamed["choices"]
    assert other.keys() == one.keys()
    assert other["message"].keys() == one["message"].keys()
    assert (
        other["message"]["reasoning_details"][0].keys()
        == one["message"]["reasoning_details"][0].keys()
    )
    calls = [choice["message"].get("tool_calls") for choice in (one, other)]
    if calls[0]:
        assert [c.keys() for c in calls[1]] == [c.keys() for c in calls[0]]
        assert [c["id"] for c in calls[1]] == [c["id"] for c in calls[0]]


TEXTS = st.lists(st.text(max_size=5), max_size=6)


@given(reasoning=TEXTS, content=TEXTS, arguments=st.lists(TEXTS, max_size=3))
def test_pieces_put_together_are_the_text(
    reasoning: list[str], content: list[str], arguments: list[list[str]]
) -> None:
    """However a text was cut into chunks, line breaks and all, none of it is lost or added."""
    chunks = [chunk(reasoning=piece, content="") for piece in reasoning]
    chunks += [chunk(content=piece, role="assistant") for piece in content]
    for index, pieces in enumerate(arguments):
        named = {"index": index, "id": f"functions.f:{index}", "type": "function"}
        chunks.append(chunk(tool_calls=[{**named, "function": {"name": "f", "arguments": ""}}]))
        chunks += [
            chunk(tool_calls=[{"index": index, "function": {"arguments": piece}}])
            for piece in pieces
        ]
    reply = tokens.read_body(stream(*chunks, chunk("stop", content="", reasoning=None)))
    message = reply["choices"][0]["message"]
    assert (message["reasoning"] or "") == "".join(reasoning)
    assert (message["content"] or "") == "".join(content)
    calls = message.get("tool_calls", [])
    assert [call["function"]["arguments"] for call in calls] == ["".join(a) for a in arguments]


def test_usage_is_read_from_any_chunk() -> None:
    """It comes after the finish reason, in a chunk with choices or with none."""
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    for last in ({**chunk("stop", content=""), "usage": usage}, {"choices": [], "usage": usage}):
        reply = tokens.read_body(stream(chunk(content="Oi"), chunk("stop"), last))
        assert reply["usage"] == usage
        assert reply["choices"][0]["finish_reason"] == "stop"


def test_a_stream_that_was_cut_off_has_no_finish_reason() -> None:
    """So it is refused as unfinished, however much of the answer there was."""
    body = stream(chunk(content="Oi"), end='data: {"id": "gen-1", "cho')
    assert tokens.read_body(body)["choices"][0]["finish_reason"] is None


def test_relayed_keep_alives_and_carriage_returns_are_passed_over() -> None:
    """Some relays send the comment as data, or end lines in CRLF."""
    body = stream(chunk(content="Oi"), chunk("stop")).replace(b"\n", b"\r\n")
    body = b"data: : OPENROUTER PROCESSING\r\n\r\n" + body
    assert tokens.read_body(body)["choices"][0]["message"]["content"] == "Oi"


def test_an_error_within_a_stream_stays_one() -> None:
    """Text before it does not make it an answer."""
    for bad in ({"error": {"code": 502}, "choices": []}, {"choices": [{"error": {"code": 502}}]}):
        reply = tokens.read_body(stream(chunk(content="Oi"), bad, chunk("stop")))
        assert reply.get("error") or reply["choices"][0]["error"]


def test_ids_and_log_probabilities_of_a_stream_are_put_together() -> None:
    """Each chunk has its own tokens'; the prompt's come with the first."""
    first, second = chunk(content="O"), chunk("stop", content="i")
    first |= {"prompt_token_ids": [1, 2]}
    first["choices"][0] |= {"token_ids": [5], "logprobs": {"content": [{"token": "O"}]}}
    second["choices"][0] |= {"token_ids": [6, 7], "logprobs": {"content": [{"token": "i"}]}}
    reply = tokens.read_body(stream(first, second))
    assert reply["prompt_token_ids"] == [1, 2]
    assert reply["choices"][0]["token_ids"] == [5, 6, 7]
    assert reply["choices"][0]["logprobs"]["content"] == [{"token": "O"}, {"token": "i"}]
