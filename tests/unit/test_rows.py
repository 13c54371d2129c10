"""Rows: whatever a worker and a provider wrote, one row that fits the schema."""

import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.records import Event
from fleet.schemas import COMPLETIONS
from workers.rows import Record, Unreadable, read_entry

EVENT: dict[str, Any] = {
    "kind": "completion",
    "prompt_id": "0" * 32,
    "dataset": "B3",
    "messages": [{"role": "user", "content": "Say hi in Portuguese, olá"}],
    "attempts": 2,
    "latency_s": 3.25,
    "requested_at": 1_777_319_885.125,
    "completed_at": 1_777_319_888.375,
    "worker": "w1",
    "endpoint": "chutes/int4",
}
USAGE = {
    "prompt_tokens": 21,
    "completion_tokens": 202,
    "cost": 0.00045364,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 166},
}


def entry(body: Any, **event: Any) -> dict[bytes, bytes]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return {b"m": json.dumps(EVENT | event).encode(), b"r": zlib.compress(raw)}


def reply(message: Any, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "native_finish_reason": "eos"}
    return {
        "id": "gen-1",
        "model": "moonshotai/kimi-k2.5-0127",
        "provider": "Chutes",
        "choices": [choice | {"message": message}],
        "usage": USAGE,
    } | more


def row(record: Record) -> dict[str, Any]:
    """The values by column, after a trip through Arrow, which refuses what does not fit."""
    columns = [pa.array([v], f.type) for v, f in zip(record.values, COMPLETIONS, strict=True)]
    table = pa.table(columns, schema=COMPLETIONS)
    table.validate(full=True)
    for column_field in COMPLETIONS:
        assert column_field.nullable or not table[column_field.name].null_count
    (values,) = table.to_pylist()
    return dict(values)


def test_a_recorded_response_becomes_a_full_row() -> None:
    """Every column says what was sent and received, with the keep-alives stripped."""
    message = {"role": "assistant", "content": " Oi!", "reasoning": " The user"}
    body = b"\n         \n\n         \n" + json.dumps(reply(message)).encode() + b"\n"
    values = row(read_entry(entry(body, tools=[{"type": "function"}], turn=1, suspect="leak")))
    assert values.pop("requested_at").isoformat() == "2026-04-27T19:58:05.125000+00:00"
    assert values.pop("completed_at").isoformat() == "2026-04-27T19:58:08.375000+00:00"
    assert json.loads(values.pop("messages")) == EVENT["messages"]
    assert values == {
        "prompt_id": "0" * 32,
        "turn": 1,
        "tools": '[{"type":"function"}]',
        "content": " Oi!",
        "reasoning": " The user",
        "tool_calls": None,
        "finish_reason": "stop",
        "native_finish_reason": "eos",
        "model": "moonshotai/kimi-k2.5-0127",
        "provider": "Chutes",
        "generation_id": "gen-1",
        "prompt_tokens": 21,
        "completion_tokens": 202,
        "reasoning_tokens": 166,
        "cached_tokens": 4,
        "cost_usd": 0.00045364,
        "suspect": "leak",
        "attempts": 2,
        "latency_s": 3.25,
        "worker": "w1",
        "endpoint": "chutes/int4",
        "response": body.strip().decode(),
    }


def test_an_answer_of_tool_calls_has_no_content() -> None:
    """Null content stays null, and the calls stand as they were received."""
    calls = [{"type": "function", "index": 0, "id": "functions.add:0", "function": {"name": "é"}}]
    values = row(read_entry(entry(reply({"content": None, "tool_calls": calls}))))
    assert values["content"] is None
    assert json.loads(values["tool_calls"]) == calls


@pytest.mark.parametrize(
    ("message", "content", "reasoning"),
    [
        ({"content": "a", "reasoning_content": "b"}, "a", "b"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "x"}, "c", None]}, "ac", None),
        ({"content": [], "reasoning": ""}, None, None),
        ({"content": ""}, "", None),
        ({"content": 5, "reasoning": {"a": 1}}, "5", '{"a":1}'),
        (
            {"reasoning_details": [{"type": "reasoning.text", "text": "b"}, {"type": "x"}, 1]},
            None,
            "b",
        ),
    ],
)
def test_texts_are_found_in_every_shape(
    message: dict[str, Any], content: str | None, reasoning: str | None
) -> None:
    """Content as text or a list of parts; reasoning under any of its names."""
    values = row(read_entry(entry(reply(message))))
    assert (values["content"], values["reasoning"]) == (content, reasoning)


def test_a_completion_nested_under_provider_is_read() -> None:
    """Seen: id and choices null at the top, the whole completion under `provider`."""
    nested = reply({"content": "a"})
    usage = nested.pop("usage")
    body = {"id": None, "choices": None, "provider": nested, "usage": usage}
    record = read_entry(entry(body))
    assert record.reason is None
    values = row(record)
    assert (values["content"], values["provider"], values["generation_id"]) == (
        "a",
        "Chutes",
        "gen-1",
    )
    assert values["completion_tokens"] == 202


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {},
        {"cost": None},
        {"cost": True, "prompt_tokens": "7"},
        {"cost": float("nan"), "prompt_tokens": 10**400, "completion_tokens": 2**64},
        {"cost": float("inf"), "prompt_tokens_details": 3, "completion_tokens_details": None},
    ],
)
def test_usage_that_is_missing_or_odd_is_null(usage: Any) -> None:
    """Money and counts are what was billed, or null; never a guess, never an error."""
    values = row(read_entry(entry(reply({"content": "a"}, usage=usage))))
    for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cost_usd"):
        assert values[name] is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n         \n\n         \n",
        b'\n         \n{"id":"gen-1","choices":[{"mess',
        b"<!DOCTYPE html><title>502</title>",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"[" * 100_000,
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": {"message": {}}},
        {"choices": [{"message": None}]},
        {"error": {"code": 502, "metadata": {"provider_name": "Google"}}},
        {"error": "down"},
        {"id": None, "choices": None, "model": None, "error": {"message": "x"}},
    ],
)
def test_a_body_without_an_answer_is_a_reject(body: Any) -> None:
    """Such a body never becomes a completion, and its text is kept."""
    record = read_entry(entry(body))
    assert record.reason == "the response body holds no answer"
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert row(record)["response"] == raw.strip().decode("utf-8", "replace")


def test_a_reject_keeps_what_can_be_told() -> None:
    """The worker's reason, and the provider that an error names."""
    body = {"error": {"code": 502, "metadata": {"provider_name": "Google"}}}
    record = read_entry(entry(body, kind="reject", reason="NoChoices: why"))
    assert record.reason == "NoChoices: why"
    assert row(record)["provider"] == "Google"


def test_half_a_surrogate_pair_does_not_stop_anything() -> None:
    """Text cut inside an emoji: JSON can spell it, UTF-8 cannot; the response keeps the escape."""
    messages = [{"role": "user", "content": "\ud83d"}]
    record = read_entry(entry(reply({"content": "hi \ud83d"}), messages=messages))
    values = row(record)
    assert values["content"] == "hi �"
    assert "\\ud83d" in values["response"]
    assert json.loads(values["messages"]) == messages


def test_a_whole_emoji_and_a_nul_stay_what_they_are() -> None:
    """Only halves are replaced."""
    body = reply({"content": "\ud83d\ude00 \x00 é", "reasoning": "\ud83d"})
    assert row(read_entry(entry(body)))["content"] == "😀 \x00 é"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "a" * 65, "\ud83d"])
def test_a_dataset_that_cannot_name_a_folder_is_a_reject(name: str) -> None:
    """Nothing is ever written outside the run's directory."""
    record = read_entry(entry(reply({"content": "a"}), dataset=name))
    assert record.reason is not None and "cannot name a folder" in record.reason
    row(record)


def test_a_body_that_does_not_unpack_is_a_torn_reject() -> None:
    """The row says so, and `torn` asks for the bytes to be kept elsewhere."""
    fields = entry(b"") | {b"r": b"not zlib"}
    record = read_entry(fields)
    assert record.torn
    assert record.reason is not None and "does not unpack" in record.reason
    row(record)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"r": b""},
        {b"m": b""},
        {b"m": b"\xff"},
        {b"m": b"{}"},
        {b"m": b"[" * 100_000},
        entry(b"", kind="else"),
        entry(b"", attempts=2**40),
        entry(b"", attempts=-1),
        entry(b"", completed_at=1e300),
        entry(b"", requested_at=-1),
    ],
)
def test_what_is_no_event_is_unreadable(fields: dict[bytes, bytes]) -> None:
    """Nothing else than `Unreadable`, so the collector can set the entry aside."""
    with pytest.raises(Unreadable):
        read_entry(fields)


def test_identity_survives_the_row() -> None:
    """The columns of a row give back what tells its response from every other."""
    record = read_entry(entry(reply({"content": "a"})))
    values = row(record)
    milliseconds = int(values["completed_at"].timestamp() * 1000)
    columns = values["prompt_id"], values["worker"], values["attempts"], milliseconds
    assert record.identity == (*columns, values["latency_s"])


SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "openrouter_samples"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"needs the recorded responses in {SAMPLES}")
def test_recorded_traffic_is_read() -> None:
    """Real responses: each has an answer, a cost and counts."""
    paths = [p for p in SAMPLES.glob("*.response.body") if "streaming" not in p.name]
    assert paths
    for path in paths:
        record = read_entry(entry(path.read_bytes()))
        values = row(record)
        assert record.reason is None
        assert values["content"] or values["tool_calls"]
        assert values["reasoning"]
        assert values["cost_usd"] > 0 and values["completion_tokens"] > 0


names = st.sampled_from(
    (
        "choices message content reasoning reasoning_details tool_calls usage cost provider id "
        "model error metadata provider_name finish_reason prompt_tokens_details cached_tokens text"
    ).split()
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


@given(body=st.dictionaries(names, json_values), message=json_values)
def test_no_body_breaks_a_row(body: dict[str, Any], message: Any) -> None:
    """Any JSON under any of the known keys gives a row that fits."""
    row(read_entry(entry(body)))
    row(read_entry(entry(body | {"choices": [{"message": message}]})))


@given(data=st.binary())
def test_no_bytes_break_a_row(data: bytes) -> None:
    """Any bytes as a body give a row that fits."""
    row(read_entry(entry(data)))


def test_events_as_workers_write_them_are_read() -> None:
    """msgspec leaves out what is default; the reader puts it back."""
    event = msgspec.convert(EVENT, Event)
    fields = {
        b"m": msgspec.json.encode(event),
        b"r": zlib.compress(b'{"choices":[{"message":{}}]}'),
    }
    values = row(read_entry(fields))
    assert (values["turn"], values["suspect"], values["tools"]) == (0, None, None)
