"""A chat completion request as it is understood; fields that do not matter are ignored."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from .errors import Reply, refuse
from .routing import Preferences


class ChatRequest(Struct, frozen=True):
    """The fields that shape the answer."""

    messages: list[dict[str, Any]]
    model: str
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    stream: bool | None = False
    provider: Preferences | None = None
    reasoning: dict[str, Any] | None = None

    @property
    def limit_tokens(self) -> int:
        """The most completion tokens that are asked for. 0: none given."""
        return self.max_completion_tokens or self.max_tokens or 0

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def thinks(self) -> bool:
        """Whether reasoning is wanted; it is, unless it is switched off."""
        wish = self.reasoning or {}
        return wish.get("enabled") is not False and wish.get("effort") != "none"


class BadRequest(Exception):
    """The body is no chat completion request."""

    @property
    def reply(self) -> Reply:
        return refuse(400, str(self), {"error_type": "invalid_request"}, outcome="bad_request_400")


def parse(body: bytes) -> tuple[ChatRequest, list[str]]:
    """The request, and the names of the parameters that it sets."""
    try:
        raw = msgspec.json.decode(body)
        if not isinstance(raw, dict):
            raise BadRequest("the body must be a JSON object")
        request = msgspec.convert(raw, ChatRequest)
    except msgspec.DecodeError as error:
        raise BadRequest(f"invalid request: {error}") from error
    if not request.messages:
        raise BadRequest('Input required: specify "prompt" or "messages"')
    limit = request.max_completion_tokens or request.max_tokens
    if limit is not None and limit < 1:
        raise BadRequest("max_tokens must be at least 1")
    return request, [name for name, value in raw.items() if value is not None]
