"""A response read: a finished answer, or the error that it is.

In: status, headers, body. Out: an `Answer`, or one of `workers.errors`. Pure. Invariant: a
body is never trusted for its status: an error is looked for wherever OpenRouter is known to
put one, and nothing but `stop`, `length`, `tool_calls` and `content_filter` is an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from workers import errors
from workers.refusals import refusal

FINISHED = ("stop", "length", "tool_calls", "content_filter")
#: Markup of the chat format that a serving engine failed to parse, in content or reasoning.
TOOL_MARKUP = "<|tool_call"
THINK_END = "</think>"


@dataclass(frozen=True)
class Allowed:
    """What a response is held against."""

    model: str
    #: Display names of the allowed providers; empty allows all.
    providers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Answer:
    """A finished completion as billed."""

    body: bytes
    provider: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    #: None when the response does not say.
    cost_usd: float | None
    #: The assistant message as a later turn needs it: without its reasoning.
    message: dict[str, Any]
    #: Why the text may not be the target's plain answer, or None.
    suspect: str | None


def read_answer(status: int, headers: Mapping[str, str], body: bytes, allowed: Allowed) -> Answer:
    """Tell what a response is.

    Raises:
        workers.errors.RequestError: by the status, or by an error anywhere in the body.
    """
    text = body.strip()
    reply = _json(text)
    if status != 200:
        raise refusal(status, headers, reply, text)
    if not text:
        words = f"{len(body)} bytes of whitespace"
        raise errors.EmptyBody(errors.Details(words, may_be_billed=True))
    if not isinstance(reply, dict):
        raise errors.NotJson(errors.Details(excerpt(text), may_be_billed=True, body=body))
    if not reply.get("choices") and isinstance(reply.get("provider"), dict):
        reply = reply["provider"]  # seen: the completion nested under `provider`
    if reply.get("error"):
        raise refusal(status, headers, reply, text)
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        details = errors.Details(excerpt(text), cost_usd=_number(_usage(reply), "cost"), body=body)
        raise errors.NoChoices(details)
    return _finished(reply, choices[0], body, allowed)


def _finished(
    reply: dict[str, Any], choice: dict[str, Any], body: bytes, allowed: Allowed
) -> Answer:
    usage, message = _usage(reply), choice.get("message")
    provider, model = str(reply.get("provider") or ""), str(reply.get("model") or "")
    finish_reason = choice.get("finish_reason")

    def details(words: str) -> errors.Details:
        cost = _number(usage, "cost")
        return errors.Details(words, cost_usd=cost, provider=provider, body=body)

    if choice.get("error"):
        raise errors.Unfinished(details(excerpt(str(choice["error"]).encode())))
    if finish_reason not in FINISHED or not isinstance(message, dict):
        raise errors.Unfinished(details(f"finish_reason {finish_reason!r}"))
    if allowed.providers and provider not in allowed.providers:
        raise errors.WrongProvider(details(f"allowed: {', '.join(sorted(allowed.providers))}"))
    if not model.startswith(allowed.model):
        raise errors.WrongProvider(details(f"model {model!r}, asked for {allowed.model!r}"))
    return Answer(
        body=body,
        provider=provider,
        finish_reason=finish_reason,
        prompt_tokens=int(_number(usage, "prompt_tokens")),
        completion_tokens=int(_number(usage, "completion_tokens")),
        cost_usd=_number(usage, "cost") if usage.get("cost") is not None else None,
        message=_for_history(message),
        suspect=_suspect(message, finish_reason),
    )


def _for_history(message: dict[str, Any]) -> dict[str, Any]:
    kept = {"role": "assistant", "content": message.get("content") or ""}
    if message.get("tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
    return kept


def _suspect(message: dict[str, Any], finish_reason: str) -> str | None:
    content = message.get("content") or ""
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    if TOOL_MARKUP in content or TOOL_MARKUP in reasoning:
        return "tool markup in the text"
    if THINK_END in content or THINK_END in reasoning:
        return "leaked </think>"
    if finish_reason == "content_filter":
        return "content filter"
    if not content.strip() and not message.get("tool_calls"):
        return "empty content"
    return None


def _usage(reply: dict[str, Any]) -> dict[str, Any]:
    usage = reply.get("usage")
    return usage if isinstance(usage, dict) else {}


def _number(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def excerpt(text: bytes) -> str:
    """The beginning of a body, on one line."""
    return " ".join(text[:600].decode("utf-8", "replace").split())[:200]
