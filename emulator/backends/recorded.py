"""Answers from recorded exchanges: real text and real counts, for faithful traffic.

In: a folder of `NAME.request.json` and `NAME.response.body`, plain or streamed. A
request whose messages were recorded gets that answer; any other gets one by hash, of
those with tools when it offers tools, without otherwise. A `max_tokens` below the
recorded count cuts the text in proportion, with finish_reason `length`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ..books import messages_key
from ..completion import Completion, Prompt
from ..config import Backend as Settings
from . import BackendError
from .synthetic import latency_s, later


class Recorded:
    """The backend of recorded answers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.exact: dict[str, Completion] = {}
        self.plain: list[Completion] = []
        self.with_tools: list[Completion] = []

    async def start(self) -> None:
        folder = Path(self.settings.samples).expanduser()
        for path in sorted(folder.glob("*.request.json")):
            answer = path.with_name(path.name.replace(".request.json", ".response.body"))
            self._add(msgspec.json.decode(path.read_bytes()), parse(answer.read_bytes()))
        if not self.exact:
            raise BackendError(f"backend.samples: no *.request.json in {folder}")

    async def stop(self) -> None:
        pass

    def begin(self, prompt: Prompt) -> asyncio.Future[Completion]:
        return later(latency_s(self.settings, prompt), self.compose(prompt))

    def most_tokens(self, prompt: Prompt) -> tuple[int, int]:
        completion = self.compose(prompt)
        return completion.prompt_tokens, completion.completion_tokens

    def compose(self, prompt: Prompt) -> Completion:
        """The recorded answer for these messages, or one by hash."""
        found = self.exact.get(prompt.messages_key)
        if found is None:
            pool = (self.with_tools if prompt.tools else self.plain) or list(self.exact.values())
            found = pool[int(prompt.dice.text * len(pool))]
        return found if found.completion_tokens <= prompt.max_tokens else _cut(found, prompt)

    def _add(self, request: dict[str, Any], completion: Completion) -> None:
        # Recorded plain and streamed: the plain one, which sorts first, is kept.
        self.exact.setdefault(messages_key(request["messages"]), completion)
        (self.with_tools if completion.tool_calls else self.plain).append(completion)


def parse(body: bytes) -> Completion:
    """A completion from a recorded body, plain or streamed."""
    text = body.strip()
    if text.startswith(b"{"):
        return _from_message(msgspec.json.decode(text))
    return _from_message(_joined(text))


def _from_message(response: dict[str, Any]) -> Completion:
    choice, usage = response["choices"][0], response["usage"]
    message = choice["message"]
    return Completion(
        content=message["content"],
        reasoning=message.get("reasoning"),
        tool_calls=tuple(message.get("tool_calls") or ()),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        reasoning_tokens=usage["completion_tokens_details"]["reasoning_tokens"],
        finish_reason=choice["finish_reason"],
        native_finish_reason=choice["native_finish_reason"],
    )


def _joined(text: bytes) -> dict[str, Any]:
    """The plain response that a stream's chunks add up to."""
    content, reasoning = "", ""
    calls: dict[int, dict[str, Any]] = {}
    chunk: dict[str, Any] = {}
    for line in text.splitlines():
        if not line.startswith(b"data: {"):
            continue
        chunk = msgspec.json.decode(line[6:])
        delta = chunk["choices"][0]["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning") or ""
        for part in delta.get("tool_calls", ()):
            _add_part(calls, part)
    message = {
        "content": content or (None if calls else ""),
        "reasoning": reasoning or None,
        "tool_calls": list(calls.values()),
    }
    return {**chunk, "choices": [{**chunk["choices"][0], "message": message}]}


def _add_part(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    index = part["index"]
    if index not in calls:
        function = {"name": part["function"]["name"], "arguments": ""}
        calls[index] = {"type": "function", "index": index, "id": part["id"], "function": function}
    calls[index]["function"]["arguments"] += part["function"]["arguments"]


def _cut(completion: Completion, prompt: Prompt) -> Completion:
    """The first part of the completion: reasoning first, then content."""
    left = prompt.max_tokens
    reasoning_tokens = min(completion.reasoning_tokens, left)
    content_tokens = max(1, completion.completion_tokens - completion.reasoning_tokens)
    share = (left - reasoning_tokens) / content_tokens
    return replace(
        completion,
        content=_part(completion.content, share) or None,
        reasoning=_part(completion.reasoning, left / max(1, completion.reasoning_tokens)),
        tool_calls=(),
        completion_tokens=left,
        reasoning_tokens=reasoning_tokens,
        finish_reason="length",
        native_finish_reason="length",
    )


def _part(text: str | None, share: float) -> str | None:
    return text[: int(len(text) * min(1.0, share))] if text else text
