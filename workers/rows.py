"""A stream entry read: what a worker said and what the provider answered, as one row.

In: the fields `m` and `r` of an entry. Out: a `Record`, whose values stand in the order of
`fleet.schemas.COMPLETIONS`, or `Unreadable`. Pure. Invariants: a record always fits its
schema, however odd the response body; an answer that cannot be a completion is a reject with
a reason, never an error. It does not judge a text: that the worker has done. It knows nothing
of Redis or of files.
"""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fleet.records import Event
from fleet.run_config import NAME

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
#: The last second of the year 9999, the latest that every reader can show.
LATEST_S = 253_402_300_799

Object = dict[str, Any]
#: Tells two responses apart: prompt_id, worker, attempts, completed_at in ms, latency_s.
Identity = tuple[str, str, int, int, float]


class Unreadable(Exception):
    """A stream entry that no row can be made of."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row for `completions/` or, with a reason, for `rejects/completions/`."""

    prompt_id: str
    dataset: str
    #: Why it is a reject; None for a completion.
    reason: str | None
    #: In the order of COMPLETIONS.
    values: tuple[Any, ...]
    identity: Identity
    #: Length of its long texts.
    text_bytes: int
    #: The response body could not be unpacked, so the row lacks it.
    torn: bool


def read_entry(fields: Mapping[bytes, bytes]) -> Record:
    """Make a row of a stream entry.

    Raises:
        Unreadable: field `m` is missing or is no event.
    """
    event = _event(fields.get(b"m"))
    try:
        packed = fields.get(b"r")
        body = zlib.decompress(packed).strip() if packed else b""
    except zlib.error as error:
        return _record(event, "", f"the response body does not unpack ({error})", torn=True)
    text = body.decode("utf-8", "replace")
    return _record(event, text, None)


def _record(event: Event, text: str, fault: str | None, torn: bool = False) -> Record:
    answer = read_answer(text)
    reason = fault or _reason(event, answer)
    completed_ms = round(event.completed_at * 1000)
    messages = to_json(event.messages)
    values = (
        event.prompt_id,
        event.turn,
        messages,
        to_json(event.tools) if event.tools else None,
        *answer.values(),
        clean(event.suspect),
        event.attempts,
        event.latency_s,
        round(event.requested_at * 1000),
        completed_ms,
        event.worker,
        clean(event.endpoint) or None,
        text,
    )
    return Record(
        prompt_id=event.prompt_id,
        dataset=event.dataset,
        reason=reason,
        values=values,
        identity=(event.prompt_id, event.worker, event.attempts, completed_ms, event.latency_s),
        text_bytes=2 * len(text) + len(messages),
        torn=torn,
    )


def _reason(event: Event, answer: "Answer") -> str | None:
    if event.kind == "reject":
        return clean(event.reason) or "rejected without a reason"
    if answer.message is None:
        return "the response body holds no answer"
    if not NAME.fullmatch(event.dataset):
        return f"the dataset name {event.dataset!r} cannot name a folder"
    return None


def _event(data: bytes | None) -> Event:
    if data is None:
        raise Unreadable("the entry has no field 'm'")
    try:
        event = msgspec.json.decode(data, type=Event)
    except (msgspec.DecodeError, RecursionError):
        event = _event_slowly(data)
    if not (0 <= event.attempts <= INT32_MAX and 0 <= event.turn <= INT32_MAX):
        raise Unreadable("field 'm': attempts or turn is out of range")
    if not (0 <= event.requested_at <= LATEST_S and 0 <= event.completed_at <= LATEST_S):
        raise Unreadable("field 'm': a time is out of range")
    return event


def _event_slowly(data: bytes) -> Event:
    """For events with half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        event = msgspec.convert(json.loads(data), Event)
        names = {"prompt_id": event.prompt_id, "dataset": event.dataset, "worker": event.worker}
        names["endpoint"] = event.endpoint
        return msgspec.structs.replace(event, **{k: clean(v) for k, v in names.items()})
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"field 'm' is no event: {error}") from None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a response body says; whatever is missing or of another type is None."""

    message: Object | None
    choice: Object
    reply: Object
    usage: Object

    def values(self) -> tuple[Any, ...]:
        """The columns from `content` to `cost_usd`, in the order of COMPLETIONS."""
        message, usage = self.message or {}, self.usage
        calls = message.get("tool_calls")
        return (
            _content(message.get("content")),
            _reasoning(message),
            to_json(calls) if calls else None,
            _text(self.choice.get("finish_reason")),
            _text(self.choice.get("native_finish_reason")),
            _text(self.reply.get("model")),
            _provider(self.reply),
            _text(self.reply.get("id")),
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
            _count(_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
            _count(_object(usage.get("prompt_tokens_details")).get("cached_tokens")),
            _amount(usage.get("cost")),
        )


def read_answer(text: str) -> Answer:
    """Find the answer in a response body, which may be anything at all."""
    reply = _object(_parse(text))
    nested = reply.get("provider")
    usage = reply.get("usage")
    if not reply.get("choices") and isinstance(nested, dict):
        reply = nested  # seen: the whole completion under `provider`
        usage = reply.get("usage") or usage
    choices = reply.get("choices")
    choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
    message = choice.get("message")
    return Answer(message if isinstance(message, dict) else None, choice, reply, _object(usage))


class _Choice(msgspec.Struct):
    message: Any = None
    finish_reason: Any = None
    native_finish_reason: Any = None


class _Reply(msgspec.Struct):
    """A body of the usual shape. It leaves the log-probabilities unread, which can be
    megabytes of small objects: 40 times faster."""

    choices: list[_Choice]
    id: Any = None
    model: Any = None
    provider: Any = None
    usage: Any = None
    error: Any = None


def _parse(text: str) -> Any:
    try:
        reply = msgspec.structs.asdict(msgspec.json.decode(text, type=_Reply))
        reply["choices"] = [msgspec.structs.asdict(choice) for choice in reply["choices"]]
        return reply
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(text)  # of any shape; takes NaN, 1e999 and half surrogate pairs
    except (ValueError, RecursionError):
        return None


def _object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def clean(text: str | None) -> str | None:
    """`text` with U+FFFD for every half of a surrogate pair, so that UTF-8 can hold it."""
    if text is None or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def to_json(value: Any) -> str:
    """Compact JSON; half a surrogate pair stays an escape."""
    try:
        return msgspec.json.encode(value).decode()
    except (UnicodeEncodeError, OverflowError, RecursionError):
        return json.dumps(value, separators=(",", ":"))


def _text(value: Any) -> str | None:
    """Text as it is; null and empty are None; anything else as JSON."""
    if isinstance(value, str):
        return clean(value) or None
    return None if value is None else to_json(value)


def _content(value: Any) -> str | None:
    """The text of an answer; of a list of parts, their texts joined."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        parts = [part if isinstance(part, str) else _object(part).get("text") for part in value]
        texts = [part for part in parts if isinstance(part, str)]
        return clean("".join(texts)) if texts else None
    return _text(value)


def _reasoning(message: Object) -> str | None:
    text = message.get("reasoning") or message.get("reasoning_content")
    if text is None and isinstance(details := message.get("reasoning_details"), list):
        text = [d for d in details if _object(d).get("type") == "reasoning.text"]
    return _content(text) or None


def _provider(reply: Object) -> str | None:
    metadata = _object(_object(reply.get("error")).get("metadata"))
    return _text(reply.get("provider")) or _text(metadata.get("provider_name"))


def _count(value: Any) -> int | None:
    number = _amount(value)
    return int(value) if number is not None and abs(number) < INT64_MAX else None


def _amount(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
