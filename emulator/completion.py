"""What a backend is asked for, and what it answers: plain values, no behaviour."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from msgspec import Struct

from .chance import Dice


class Prompt(Struct, frozen=True, kw_only=True):
    """One completion to make."""

    messages: list[dict[str, Any]]
    messages_key: str
    nth: int
    dice: Dice
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    #: How many alternatives beside each token; None: no logprobs at all.
    top_logprobs: int | None = None
    tools: bool = False
    reasoning: bool = True
    latency_factor: float = 1.0


class Completion(Struct, frozen=True, kw_only=True):
    """The answer, with the counts that are billed. `finish_reason` as the API has it."""

    content: str | None
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str | None = "stop"
    native_finish_reason: str | None = "stop"
    reasoning: str | None = None
    reasoning_tokens: int = 0
    #: In the shape of a plain response: type, index, id, function.
    tool_calls: tuple[dict[str, Any], ...] = ()
    logprobs: dict[str, Any] | None = None
    #: choices[0].error, when the generation broke off.
    error: dict[str, Any] | None = None
    #: The usage block is left out of the response.
    hide_usage: bool = False


class PromptTooLong(Exception):
    """The prompt and max_tokens do not fit into the model's context."""


class Backend(Protocol):
    """Where text comes from."""

    async def start(self) -> None:
        """Load what is needed; called once, before the first request."""

    def begin(self, prompt: Prompt) -> asyncio.Future[Completion]:
        """Start a completion. It goes on when nobody waits for it any more."""

    def most_tokens(self, prompt: Prompt) -> tuple[int, int]:
        """Prompt and completion tokens at most, for the balance check."""

    async def stop(self) -> None:
        """Let go of threads; what is in flight may be dropped."""
