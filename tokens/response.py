"""A response as recorded, read: the answer, what was billed, and any ids that came with it.

In: a body, JSON or a stream, or its JSON object. Out: a `Response`. It never fails on an odd
response: what cannot be read is None, and `tokens.fidelity` says what follows from that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from tokens.conversation import Answer, is_call
from tokens.sse import read_stream

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Billed:
    """Token counts of `usage`; None when the response does not say."""

    prompt: int | None
    completion: int | None


@dataclass(frozen=True)
class Response:
    """What a response says."""

    #: None when the response holds no answer, or one with a tool call that names no function.
    answer: Answer | None
    provider: str | None
    billed: Billed
    #: The day it was made, UTC.
    day: date | None
    #: Token ids of the prompt and the completion, from engines that return them.
    prompt_ids: tuple[int, ...] | None
    completion_ids: tuple[int, ...] | None
    #: Per-token log-probabilities of the completion.
    logprobs: Sequence[Object]


def read_body(body: bytes) -> Object:
    """The JSON object of a recorded body, which may begin with keep-alives, or be a stream.

    Raises:
        ValueError: the body is neither.
    """
    text = body.strip()
    if not text.startswith(b"{"):
        return read_stream(text)
    reply = json.loads(text)
    return _object(reply)


def read_response(reply: Object) -> Response:
    """Find the parts of a response."""
    if not reply.get("choices") and isinstance(reply.get("provider"), dict):
        reply = reply["provider"]  # seen: the whole completion under `provider`
    choice = _object(next(iter(_list(reply.get("choices"))), None))
    usage = _object(reply.get("usage"))
    provider = reply.get("provider")
    return Response(
        answer=None if reply.get("error") or choice.get("error") else _answer(choice),
        provider=provider if isinstance(provider, str) else None,
        billed=Billed(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))),
        day=_day(reply.get("created")),
        prompt_ids=_ids(choice.get("prompt_token_ids")) or _ids(reply.get("prompt_token_ids")),
        completion_ids=_completion_ids(choice, reply),
        logprobs=[
            _object(entry) for entry in _list(_object(choice.get("logprobs")).get("content"))
        ],
    )


def _answer(choice: Object) -> Answer | None:
    message = choice.get("message")
    if not isinstance(message, dict):
        return None
    finish_reason = choice.get("finish_reason")
    calls = _list(message.get("tool_calls"))
    if not all(is_call(call) and _is_text(call["function"].get("arguments")) for call in calls):
        return None
    return Answer(
        content=_text(message.get("content")),
        reasoning=_text(message.get("reasoning") or message.get("reasoning_content"))
        or _text(message.get("reasoning_details")),
        tool_calls=tuple(calls),
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
    )


def _completion_ids(choice: Object, reply: Object) -> tuple[int, ...] | None:
    """vLLM and SGLang: `token_ids` of the choice; SGLang's own API: `output_ids`."""
    return _ids(choice.get("token_ids")) or _ids(reply.get("output_ids"))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _text(value: Any) -> str | None:
    """Text as it is; of a list of parts, their texts joined."""
    if isinstance(value, list):
        texts = [part if isinstance(part, str) else _object(part).get("text") for part in value]
        return "".join(text for text in texts if isinstance(text, str)) or None
    return value if isinstance(value, str) else None


def _ids(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        return None
    return tuple(value) or None


def _count(value: Any) -> int | None:
    """A count of tokens; 0 says nothing, since every prompt and every answer has some."""
    return value if type(value) is int and value > 0 else None


def _day(created: Any) -> date | None:
    if type(created) is not int:
        return None
    try:
        return datetime.fromtimestamp(created, UTC).date()
    except (ValueError, OverflowError, OSError):
        return None


def _object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
