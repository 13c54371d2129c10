"""A streamed completion as server-sent events, key for key as recorded.

Reasoning pieces, content pieces, tool-call pieces, then two closing chunks: the first
sets finish_reason, the second repeats it and carries `usage` beside choices that are
not empty; then `[DONE]`. The role is repeated in every chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from .completion import Completion
from .money import Bill
from .wire import Head, reasoning_detail, usage

COMMENT = b": OPENROUTER PROCESSING\n\n"
DONE = b"data: [DONE]\n\n"

#: One word with the space before it, or a run of white space.
_PIECE = re.compile(r"\s?\S+|\s+")


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def pieces(head: Head, completion: Completion) -> list[bytes]:
    """The chunks before the closing ones."""
    chunks = [_chunk(head, delta) for delta in _deltas(completion)]
    if completion.logprobs is not None and chunks:
        # Pieces are not tokens here: all logprobs ride on the last piece.
        return [*map(event, chunks[:-1]), event(_with_logprobs(chunks[-1], completion))]
    return [event(chunk) for chunk in chunks]


def closing(head: Head, completion: Completion, bill: Bill) -> list[bytes]:
    """Both closing chunks and `[DONE]`; a broken-off generation ends with its error."""
    if completion.error is not None:
        return [error_event(head, completion.error)]
    last = {"content": "", "role": "assistant"}
    finish = completion.finish_reason, completion.native_finish_reason
    first = _chunk(head, {**last, "reasoning": None}, *finish)
    second = _chunk(head, last, *finish)
    if not completion.hide_usage:
        second["usage"] = usage(completion, bill)
    return [event(first), event(second), DONE]


def error_event(head: Head, error: dict[str, Any]) -> bytes:
    """The documented end of a stream that failed: `error` beside a choice."""
    value = _named(head)
    value["error"] = error
    value["choices"] = [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]
    return event(value)


def error_event_recorded(head: Head, error: dict[str, Any]) -> bytes:
    """The recorded end of a stream that failed: finish_reason is null, `[DONE]` follows."""
    delta = {"role": "assistant", "content": ""}
    value = {
        "id": head.id,
        "provider": head.provider,
        "error": error,
        "model": head.model,
        "object": "chat.completion.chunk",
        "created": head.created,
        "choices": [
            {
                "index": 0,
                "delta": delta,
                "finish_reason": None,
                "native_finish_reason": None,
                "logprobs": None,
            }
        ],
    }
    return event(value) + DONE


def _deltas(completion: Completion) -> Iterator[dict[str, Any]]:
    for piece in _PIECE.findall(completion.reasoning or ""):
        yield {
            "content": "",
            "role": "assistant",
            "reasoning": piece,
            "reasoning_details": [reasoning_detail(piece)],
        }
    for piece in _PIECE.findall(completion.content or ""):
        yield {"content": piece, "role": "assistant"}
    for call in completion.tool_calls:
        yield from _tool_deltas(call)


def _tool_deltas(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    function = call["function"]
    opening = {
        "index": call["index"],
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": ""},
    }
    yield {"content": None, "role": "assistant", "tool_calls": [opening]}
    for piece in _PIECE.findall(function["arguments"]):
        part = {"index": call["index"], "function": {"arguments": piece}}
        yield {"content": None, "role": "assistant", "tool_calls": [part]}


def _named(head: Head) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "provider": head.provider,
    }


def _chunk(
    head: Head,
    delta: dict[str, Any],
    finish: str | None = None,
    native: str | None = None,
) -> dict[str, Any]:
    value = _named(head)
    value["choices"] = [
        {
            "index": 0,
            "delta": delta,
            "finish_reason": finish,
            "native_finish_reason": native,
        }
    ]
    return value


def _with_logprobs(chunk: dict[str, Any], completion: Completion) -> dict[str, Any]:
    return {
        **chunk,
        "choices": [{**chunk["choices"][0], "logprobs": completion.logprobs}],
    }
