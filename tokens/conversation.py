"""What goes into a renderer: a prompt as it was sent, an answer as it came back.

Messages and tools are in OpenAI's shapes. Invariant: what cannot be text (an image, half a
surrogate pair) is refused here, with its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from tokens.errors import HalfCharacter, Unrenderable

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
#: Finish reasons after which the model has written its end token.
ENDED = ("stop", "tool_calls")
#: Fields of a message that are text, or not there.
TEXTS = ("name", "reasoning", "reasoning_content", "tool_call_id")


@dataclass(frozen=True)
class Prompt:
    """A conversation to complete, as it was sent.

    Raises:
        Unrenderable: a message, a tool call or a tool is not in OpenAI's shape.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    #: Whether the model is to think before it answers, for families that have the choice.
    thinking: bool = True
    #: The day of the request, for templates that state it; None leaves it to the template.
    day: date | None = None

    def __post_init__(self) -> None:
        for at, message in enumerate(self.messages, 1):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise Unrenderable(f"message {at} is no object with a role")
            for name in TEXTS:
                if not isinstance(message.get(name), str | None):
                    raise Unrenderable(f"message {at}: {name} is not text")
            calls = message.get("tool_calls") or []
            if not isinstance(calls, list | tuple) or not all(map(is_call, calls)):
                raise Unrenderable(f"message {at}: a tool call without a function's name")
        for at, tool in enumerate(self.tools or (), 1):
            if not isinstance(tool, Mapping) or not (
                tool.get("type") != "function" or is_call(tool)
            ):
                raise Unrenderable(f"tool {at} is no object, or a function without a name")


@dataclass(frozen=True)
class Answer:
    """What the model wrote, as the response has it: no text is trimmed."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    finish_reason: str | None = "stop"

    @property
    def ended(self) -> bool:
        """Whether an end token follows; a truncated answer has none."""
        return self.finish_reason in ENDED


def text_of(content: Any, joint: str = "") -> str:
    """The text of a message's content; of a list of parts, their texts joined.

    Raises:
        Unrenderable: a part is not text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return joint.join(_part_text(part) for part in content)
    raise Unrenderable(f"content is {type(content).__name__}, neither text nor a list of parts")


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise Unrenderable(f"a content part of type {kind!r}: only text can be counted in tokens")


def is_call(call: Any) -> bool:
    """Whether a tool call names its function."""
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def arguments_of(tool_call: Mapping[str, Any]) -> Any:
    """A tool call's arguments as a server hands them to a template: parsed where they are JSON."""
    arguments = tool_call["function"].get("arguments")
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def utf8(text: str) -> str:
    """`text` itself.

    Raises:
        HalfCharacter: it holds half a surrogate pair, which no tokenizer can spell.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}"
        raise HalfCharacter(
            f"half a surrogate pair ({half}) at character {error.start}: replace it, "
            "no tokenizer can spell it"
        ) from error
    return text
