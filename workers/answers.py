"""A response read: a finished answer, or the error that it is.

In: status, headers, body. Out: an `Answer`, or one of `workers.errors`. Pure. Invariant: a
body is never trusted for its status: an error is looked for wherever OpenRouter is known to
put one, and nothing but `stop`, `length`, `tool_calls` and `content_filter` is an answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from workers import errors
from workers.refusals import as_dict, cost_usd, excerpt, number, plain, refusal

FINISHED = ("stop", "length", "tool_calls", "content_filter")
#: Markup of the chat format that a serving engine failed to parse, in content or reasoning.
TOOL_MARKUP = "<|tool_call"
THINK_END = "</think>"
#: More tokens than any response has: such a count is not believed.
MOST_TOKENS = 10_000_000


@dataclass(frozen=True)
class Allowed:
    """What a response is held against."""

    #: As asked for. The answer bears the dated name: `kimi-k2.5-0127` for `kimi-k2.5`.
    model: str
    #: Display names of the allowed providers; empty allows all.
    providers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Answer:
    """A finished completion as billed."""

    body: bytes
    provider: str
    finish_reason: str
    #: 0 when the response does not say, as for the next.
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
    if status != 200 or (isinstance(reply, dict) and reply.get("error")):
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
        details = errors.Details(excerpt(text), cost_usd=cost_usd(reply) or 0.0, body=body)
        raise errors.NoChoices(details)
    return _finished(reply, choices[0], body, allowed)


def _finished(
    reply: dict[str, Any], choice: dict[str, Any], body: bytes, allowed: Allowed
) -> Answer:
    message, finish_reason = choice.get("message"), choice.get("finish_reason")
    provider, model = _name(reply.get("provider")), _name(reply.get("model"))
    usage, cost = as_dict(reply.get("usage")), cost_usd(reply)

    def details(words: str, billed: bool = True) -> errors.Details:
        return errors.Details(
            words,
            cost_usd=cost or 0.0,
            may_be_billed=billed and cost is None,
            provider=provider,
            body=body,
        )

    if choice.get("error"):
        raise errors.Unfinished(
            details(excerpt(str(refusal(0, {}, choice, b"")).encode()), billed=False)
        )
    if finish_reason not in FINISHED or not isinstance(message, dict):
        # OpenRouter does not bill a generation that it ends with `error`.
        words = f"finish_reason {finish_reason!r}"
        raise errors.Unfinished(details(words, billed=finish_reason != "error"))
    if allowed.providers and provider not in allowed.providers:
        raise errors.WrongProvider(details(f"allowed: {', '.join(sorted(allowed.providers))}"))
    if not _is_model(model, allowed.model):
        raise errors.WrongProvider(details(f"model {model!r}, asked for {allowed.model!r}"))
    return Answer(
        body=body,
        provider=provider,
        finish_reason=finish_reason,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        cost_usd=cost,
        message=_for_history(message),
        suspect=_suspect(message, finish_reason, usage),
    )


def _is_model(answered: str, asked: str) -> bool:
    """Whether the name answered is the one asked for, or that with a date or size after it.

    A part without a digit names another model: `kimi-k2-thinking-20251106` is no `kimi-k2`.
    """
    name, base = (text.lower().partition(":")[0] for text in (answered, asked))
    if not name.startswith(base):
        return False
    first, *parts = name.removeprefix(base).split("-")
    return not first and all(any(c.isdigit() for c in part) for part in parts)


def _for_history(message: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"role": "assistant", "content": _text(message.get("content"))}
    if message.get("tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
    if _has_half_characters(kept):
        spelt = json.dumps(kept, ensure_ascii=False).encode("utf-8", "replace")
        kept = json.loads(spelt)
    return kept


def _suspect(message: dict[str, Any], finish_reason: str, usage: dict[str, Any]) -> str | None:
    content = _text(message.get("content"))
    reasoning = "".join(
        _text(message.get(name)) for name in ("reasoning", "reasoning_content", "reasoning_details")
    )
    if TOOL_MARKUP in content or TOOL_MARKUP in reasoning:
        return "tool markup in the text"
    if THINK_END in content or THINK_END in reasoning:
        return "leaked </think>"
    if finish_reason == "content_filter":
        return "content filter"
    if not content.strip() and not message.get("tool_calls"):
        return "empty content"
    if _has_half_characters(message):
        return "half a character"
    if not _count(usage, "completion_tokens"):
        return "no token count"
    return None


def _text(value: Any) -> str:
    """The text of a message's field; of a list of parts, their texts joined."""
    if isinstance(value, list):
        parts = [as_dict(part).get("text", part) for part in value]
        return "".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _name(value: Any) -> str:
    return plain(value) if isinstance(value, str) else ""


def _has_half_characters(value: Any) -> bool:
    """JSON can spell half a surrogate pair; UTF-8, and with it the next request, cannot."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return True
    except (OverflowError, RecursionError):
        return False
    return False


def _count(usage: dict[str, Any], name: str) -> int:
    return int(number(usage.get(name), MOST_TOKENS) or 0)


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(text.decode())  # takes NaN, 1e999 and half surrogate pairs
    except (ValueError, RecursionError):
        return None
