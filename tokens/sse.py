"""A streamed response put together: the same JSON object that a plain response is.

In: the bytes of a `text/event-stream`, complete or cut off. Out: one `chat.completion`.
Invariant: no text is lost or added; a stream that ended before its finish reason has none, so
that nobody takes it for an answer. Comments and relayed keep-alives are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

Object = dict[str, Any]
#: Lists of one entry a token, in a chunk's choice.
PER_TOKEN = ("token_ids", "prompt_token_ids")


def read_stream(body: bytes) -> Object:
    """Put the chunks of a stream together.

    Raises:
        ValueError: no event of the stream is JSON.
    """
    chunks = list(_chunks(body))
    if not chunks:
        raise ValueError(f"neither JSON nor a stream of events: {body[:80]!r}")
    reply: Object = {}
    for chunk in chunks:
        reply |= {name: value for name, value in chunk.items() if value is not None}
    choices = [choice for chunk in chunks for choice in _first_choices(chunk)]
    return reply | {"object": "chat.completion", "choices": [_choice(choices)] if choices else []}


def _chunks(body: bytes) -> Iterator[Object]:
    """The JSON object of every event; lines that are none are keep-alives."""
    for line in body.decode("utf-8", "replace").split("\n"):
        if line.startswith("data:"):
            try:
                chunk = json.loads(line.removeprefix("data:"))
            except (ValueError, RecursionError):
                continue
            if isinstance(chunk, dict):
                yield chunk


def _first_choices(chunk: Object) -> list[Object]:
    return [choice for choice in _objects(chunk.get("choices")) if not choice.get("index")]


def _choice(parts: list[Object]) -> Object:
    deltas = [part["delta"] for part in parts if isinstance(part.get("delta"), dict)]
    told = [part["logprobs"] for part in parts if isinstance(part.get("logprobs"), dict)]
    entries = [entry for one in told for entry in _list(one.get("content"))]
    choice: Object = {
        "index": 0,
        "logprobs": {"content": entries} if entries else None,
        "finish_reason": _last(parts, "finish_reason"),
        "native_finish_reason": _last(parts, "native_finish_reason"),
        "message": _message(deltas),
    }
    if error := _last(parts, "error"):
        choice["error"] = error
    for name in PER_TOKEN:
        if ids := [number for part in parts for number in _list(part.get(name))]:
            choice[name] = ids
    return choice


def _message(deltas: list[Object]) -> Object:
    calls = _tool_calls(call for delta in deltas for call in _objects(delta.get("tool_calls")))
    details = _details(d for delta in deltas for d in _objects(delta.get("reasoning_details")))
    reasoning = _joined(deltas, "reasoning") or _joined(deltas, "reasoning_content")
    message: Object = {
        "role": "assistant",
        "content": _joined(deltas, "content") or (None if calls else ""),
        "refusal": _joined(deltas, "refusal") or None,
        "reasoning": reasoning or None,
    }
    if calls:
        message["tool_calls"] = calls
    if details:
        message["reasoning_details"] = details
    return message


def _tool_calls(pieces: Iterable[Object]) -> list[Object]:
    """Calls by their index: the first piece names it, the others add to its arguments."""
    calls: dict[int, Object] = {}
    for piece in pieces:
        index = _number(piece.get("index"))
        call = calls.setdefault(index, {"type": "function", "index": index, "function": {}})
        function, new = call["function"], piece.get("function")
        new = new if isinstance(new, dict) else {}
        call["id"] = call.get("id") or piece.get("id")
        function["name"] = function.get("name") or new.get("name")
        function["arguments"] = function.get("arguments", "") + _text(new.get("arguments"))
    return [calls[index] for index in sorted(calls)]


def _details(pieces: Iterable[Object]) -> list[Object]:
    """Reasoning details with the texts of each joined."""
    details: dict[tuple[int, str], Object] = {}
    for piece in pieces:
        key = _number(piece.get("index")), _text(piece.get("type"))
        detail = details.setdefault(key, {**piece, "text": ""})
        detail["text"] += _text(piece.get("text"))
    return list(details.values())


def _joined(deltas: list[Object], name: str) -> str:
    return "".join(delta[name] for delta in deltas if isinstance(delta.get(name), str))


def _last(parts: list[Object], name: str) -> Any:
    values = [part[name] for part in parts if part.get(name) is not None]
    return values[-1] if values else None


def _objects(value: Any) -> list[Object]:
    return [one for one in _list(value) if isinstance(one, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
