"""A plain (not streamed) completion as bytes, key for key as recorded.

Facts held here: keep-alives are the 11 bytes newline, nine spaces, newline; `model` is
the dated slug; `provider` is a display name; tool_calls come before reasoning_details;
costs are written without exponent down to 1e-6; nothing follows the JSON.
"""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

import msgspec

from .chance import ALPHABET
from .completion import Completion
from .money import Bill, usd_json

#: Ids are unique, not reproducible: seeded by the system.
_IDS = random.Random()

KEEPALIVE = b"\n" + b" " * 9 + b"\n"


class Head(NamedTuple):
    """What all chunks of a response repeat."""

    id: str
    created: int
    model: str
    provider: str


def generation_id() -> str:
    """`gen-`, unix seconds, `-`, 20 letters and digits."""
    tail = "".join(_IDS.choices(ALPHABET, k=20))
    return f"gen-{int(time.time())}-{tail}"


def body(head: Head, completion: Completion, bill: Bill) -> bytes:
    """The whole response body."""
    value = {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "provider": head.provider,
        "system_fingerprint": None,
        "choices": [choice(completion)],
    }
    if not completion.hide_usage:
        value["usage"] = usage(completion, bill)
    return msgspec.json.encode(value)


def choice(completion: Completion) -> dict[str, Any]:
    """The one element of `choices`."""
    value = {
        "index": 0,
        "logprobs": completion.logprobs,
        "finish_reason": completion.finish_reason,
        "native_finish_reason": completion.native_finish_reason,
        "message": message(completion),
    }
    if completion.error is not None:
        value["error"] = completion.error
    return value


def message(completion: Completion) -> dict[str, Any]:
    """The assistant's message; without reasoning, `reasoning` is null and has no details."""
    value: dict[str, Any] = {
        "role": "assistant",
        "content": completion.content,
        "refusal": None,
        "reasoning": completion.reasoning,
    }
    if completion.tool_calls:
        value["tool_calls"] = completion.tool_calls
    if completion.reasoning is not None:
        value["reasoning_details"] = [reasoning_detail(completion.reasoning)]
    return value


def reasoning_detail(text: str) -> dict[str, Any]:
    return {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}


def usage(completion: Completion, bill: Bill) -> dict[str, Any]:
    """The usage block. Raw numbers keep the decimals exact."""
    total = msgspec.Raw(usd_json(bill.total_nano))
    return {
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "total_tokens": completion.prompt_tokens + completion.completion_tokens,
        "cost": total,
        "is_byok": False,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "audio_tokens": 0,
            "video_tokens": 0,
        },
        "cost_details": {
            "upstream_inference_cost": total,
            "upstream_inference_prompt_cost": msgspec.Raw(usd_json(bill.prompt_nano)),
            "upstream_inference_completions_cost": msgspec.Raw(usd_json(bill.completion_nano)),
        },
        "completion_tokens_details": {
            "reasoning_tokens": completion.reasoning_tokens,
            "image_tokens": 0,
            "audio_tokens": 0,
        },
    }
