"""The emulator's bytes against recorded traffic, key for key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emulator import stream, wire
from emulator.backends.recorded import parse
from emulator.config import Endpoint
from emulator.money import Bill, usd_json, usd_text
from emulator.state import cost

SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "openrouter_samples"
PLAIN = ("simple_0", "tool_0", "tool_1", "multi_tool_0")
STREAMED = ("simple_streaming_0", "tool_streaming_0", "multi_tool_streaming_0")
#: Completion price in USD per million, as the recorded costs imply.
PRICES = {"Inceptron": (0.44, 2.2), "Chutes": (0.44, 2.0), "ModelRun": (0.55, 3.25)}


def recorded(name: str) -> bytes:
    path = SAMPLES / f"{name}.response.body"
    if not path.exists():
        pytest.skip(f"{path} is absent: recorded traffic lies outside the repository")
    return path.read_bytes()


def head_of(response: dict[str, Any]) -> wire.Head:
    return wire.Head(*(response[name] for name in ("id", "created", "model", "provider")))


def endpoint_of(response: dict[str, Any]) -> Endpoint:
    prompt, completion = PRICES[response["provider"]]
    return Endpoint(
        tag="t", provider_name="p", prompt_usd_per_m=prompt, completion_usd_per_m=completion
    )


def events(body: bytes) -> list[dict[str, Any]]:
    lines = [line for line in body.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line[6:]) for line in lines]


def shape(value: Any) -> Any:
    """Keys in order, and types, without the values."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "number" if isinstance(value, int | float) else type(value).__name__


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_response_is_rebuilt_byte_for_byte(name: str) -> None:
    """From a recording's text, counts and prices come the recording's very bytes."""
    body = recorded(name)
    text = body.lstrip()
    response = json.loads(text)
    completion = parse(body)
    bill = cost(endpoint_of(response), completion)

    assert wire.body(head_of(response), completion, bill) == text


@pytest.mark.parametrize("name", PLAIN)
def test_keepalives_are_the_recorded_eleven_bytes(name: str) -> None:
    """All that stands before the JSON is whole keep-alives."""
    body = recorded(name)
    before = body[: body.index(b"{")]

    assert before == wire.KEEPALIVE * (len(before) // len(wire.KEEPALIVE))
    assert len(wire.KEEPALIVE) == 11


@pytest.mark.parametrize("name", STREAMED)
def test_stream_chunks_have_the_recorded_keys_in_order(name: str) -> None:
    """Every kind of chunk that was recorded is sent with the same keys in the same order."""
    body = recorded(name)
    first = events(body)[0]
    completion = parse(body)
    bill = cost(endpoint_of(first), completion)
    head = head_of(first)
    chunks = stream.pieces(head, completion) + stream.closing(head, completion, bill)
    ours = {str(shape(chunk)) for chunk in events(b"".join(chunks))}

    assert {str(shape(chunk)) for chunk in events(body)} == ours


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_ends_as_recorded(name: str) -> None:
    """The usage chunk is separate, repeats finish_reason, has choices, and [DONE] is last."""
    body = recorded(name)
    assert body.startswith(stream.COMMENT)
    assert body.endswith(stream.DONE)
    completion, last = parse(body), events(body)[-1]
    prompt_nano = round(last["usage"]["cost_details"]["upstream_inference_prompt_cost"] * 1e9)
    bill = Bill(prompt_nano, round(last["usage"]["cost"] * 1e9) - prompt_nano)
    last["usage"]["prompt_tokens_details"]["cached_tokens"] = 0  # the emulator caches nothing
    ours = events(b"".join(stream.closing(head_of(last), completion, bill)))

    assert ours[-1] == last
    assert shape(ours[-2]) == shape(events(body)[-2])


@pytest.mark.parametrize("name", STREAMED)
def test_the_pieces_of_a_stream_add_up_to_the_completion(name: str) -> None:
    """Text, reasoning and tool calls are the same after a round trip through a stream."""
    completion = parse(recorded(name))
    head = wire.Head("gen-1-a", 1, "m", "p")
    chunks = stream.pieces(head, completion) + stream.closing(head, completion, Bill(0, 0))

    assert parse(b"".join(chunks)) == completion


def test_ids_are_seconds_and_twenty_letters_or_digits() -> None:
    """`gen-<unix>-<20 alphanumeric>`, never the same twice."""
    ids = {wire.generation_id() for _ in range(100)}
    assert len(ids) == 100
    prefix, seconds, tail = ids.pop().split("-")
    assert (prefix, len(tail), tail.isalnum(), seconds.isdigit()) == ("gen", 20, True, True)


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (453640, "0.00045364"),
        (9240, "0.00000924"),
        (440, "4.4e-7"),
        (1, "1e-9"),
        (500, "5e-7"),
        (0, "0"),
        (2 * 10**9, "2"),
        (1234567890123, "1234.567890123"),
    ],
)
def test_costs_are_written_as_javascript_writes_them(nano: int, text: str) -> None:
    """Plain down to 1e-6, an exponent below, and always the exact amount."""
    assert usd_json(nano).decode() == text
    assert round(float(text) * 1e9) == nano


def test_the_books_write_amounts_without_exponent() -> None:
    """Amounts as text are exact decimals."""
    assert [usd_text(n) for n in (440, -440, 10**9)] == ["0.00000044", "-0.00000044", "1"]
