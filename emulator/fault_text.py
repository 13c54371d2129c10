"""Faults that alter a completion: what the provider did wrong with the text."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from .completion import Completion

#: Tool-call markup of Kimi K2 that a provider failed to parse.
MARKUP = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0"
    '<|tool_call_argument_begin|>{"query": "weather"}<|tool_call_end|><|tool_calls_section_end|>'
)


def altered(kind: str, completion: Completion) -> Completion:
    """The completion as this fault leaves it; kinds that touch no text return it as it is."""
    change = _CHANGES.get(kind)
    return change(completion) if change else completion


def _half(text: str | None) -> str:
    text = text or ""
    return text[: max(1, len(text) // 2)] if text else ""


def _finish_error(completion: Completion) -> Completion:
    error = {
        "code": 502,
        "message": "Provider disconnected mid-stream",
        "metadata": {"error_type": "provider_unavailable"},
    }
    return replace(
        completion,
        content=_half(completion.content),
        tool_calls=(),
        logprobs=None,
        finish_reason="error",
        native_finish_reason="error",
        error=error,
    )


def _zero_tokens(completion: Completion) -> Completion:
    return replace(
        completion,
        content="",
        reasoning=None,
        tool_calls=(),
        logprobs=None,
        completion_tokens=0,
        reasoning_tokens=0,
        finish_reason=None,
        native_finish_reason=None,
    )


def _length(completion: Completion) -> Completion:
    return replace(
        completion,
        content=_half(completion.content),
        tool_calls=(),
        logprobs=None,
        completion_tokens=max(1, completion.completion_tokens // 2),
        reasoning_tokens=completion.reasoning_tokens // 2,
        finish_reason="length",
        native_finish_reason="length",
    )


def _length_in_reasoning(completion: Completion) -> Completion:
    thoughts = completion.reasoning or completion.content
    tokens = max(1, completion.completion_tokens // 2)
    return replace(
        _length(completion),
        content=None,
        reasoning=_half(thoughts),
        reasoning_tokens=tokens,
    )


def _markup_in_content(completion: Completion) -> Completion:
    content = (completion.content or "") + MARKUP
    return replace(completion, content=content, tool_calls=(), logprobs=None)


def _markup_in_reasoning(completion: Completion) -> Completion:
    return replace(
        completion,
        content="",
        reasoning=(completion.reasoning or "") + MARKUP,
        tool_calls=(),
        logprobs=None,
    )


def _think_leak(completion: Completion) -> Completion:
    content = f"{completion.reasoning or ' Let me think.'}</think>{completion.content or ''}"
    return replace(completion, content=content, reasoning=None, logprobs=None)


_CHANGES: dict[str, Callable[[Completion], Completion]] = {
    "finish_error": _finish_error,
    "zero_tokens": _zero_tokens,
    "length": _length,
    "length_in_reasoning": _length_in_reasoning,
    "no_finish_reason": lambda c: replace(c, finish_reason=None, native_finish_reason=None),
    "markup_in_content": _markup_in_content,
    "markup_in_reasoning": _markup_in_reasoning,
    "think_leak": _think_leak,
    "empty_content": lambda c: replace(c, content="", tool_calls=(), logprobs=None),
    "null_native_finish": lambda c: replace(c, native_finish_reason=None),
    "missing_usage": lambda c: replace(c, hide_usage=True),
}
