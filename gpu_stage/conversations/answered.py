"""An answered prompt, as every format writes and reads it.

Messages and tools are in OpenAI's shapes. Invariant: what a format cannot say is refused with
`CannotCarry`, never left out of an answer in silence; a line that is none is `Unusable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Message = Mapping[str, Any]


class CannotCarry(Exception):
    """The format has no place for a part of the answer; the message is a short reason."""


class Unusable(Exception):
    """A line is no conversation of a known format; the message says why."""


@dataclass(frozen=True)
class Ids:
    """Token ids of an answer: of what the model read, and of what it wrote."""

    prompt: Sequence[int]
    completion: Sequence[int]
    #: As far as is known: `exact` are those that the target sampled.
    fidelity: str = "exact"


@dataclass(frozen=True)
class Answered:
    """A prompt and its answer."""

    #: All that came before the answer. Empty when only ids say.
    messages: Sequence[Message]
    content: str | None
    reasoning: str | None = None
    tool_calls: Sequence[Object] = ()
    tools: Sequence[Object] | None = None
    #: None when nothing says.
    finish_reason: str | None = None
    #: How many answers of the same conversation the target wrote before this one.
    turn: int = 0
    prompt_id: str = ""
    #: What all answers of a conversation share.
    conversation: str = ""
    ids: Ids | None = None
    #: `prompt_tokens` and `completion_tokens` as billed or counted by the server.
    usage: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Format:
    """How a project writes conversations."""

    #: Whether a line is in this format.
    recognises: Callable[[Object], bool]
    #: Raises CannotCarry.
    write: Callable[[Answered], Object]
    #: The answers of a line, in order. Raises Unusable.
    read: Callable[[Object], list[Answered]]
    #: Whether `write` needs token ids.
    needs_ids: bool = False


def plain_text(content: Any) -> str:
    """The text of a message's content.

    Raises:
        CannotCarry: it holds something else.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise CannotCarry("content that is not text")
    return "".join(texts)


def reasoning_of(message: Message) -> str | None:
    """The thought of an assistant's message, under either name."""
    text = message.get("reasoning_content") or message.get("reasoning")
    return text if isinstance(text, str) else None


def answer_message(answered: Answered) -> Object:
    """The answer as an assistant's message in OpenAI's shape, reasoning included."""
    message: Object = {"role": "assistant", "content": answered.content}
    if answered.reasoning:
        message["reasoning_content"] = answered.reasoning
    if answered.tool_calls:
        message["tool_calls"] = list(answered.tool_calls)
    return message


def check_ended(answered: Answered) -> None:
    """For formats that do not say how an answer ended: their readers take it as whole.

    Raises:
        CannotCarry: it was cut off, or did not end.
    """
    if answered.finish_reason == "length":
        raise CannotCarry("truncated")
    if answered.finish_reason not in ("stop", "tool_calls"):
        raise CannotCarry("unfinished")


def check_no_tools(answered: Answered) -> None:
    """For formats of plain talk.

    Raises:
        CannotCarry: tools were offered, called or have answered.
    """
    called = any(m.get("tool_calls") or m.get("role") == "tool" for m in answered.messages)
    if answered.tools or answered.tool_calls or called:
        raise CannotCarry("tools")


def answers_in(messages: Any, tools: Any = None) -> list[Answered]:
    """Each assistant's message with all that comes before it, in OpenAI's shape.

    What an assistant says before the first user is context, and no answer.

    Raises:
        Unusable: it is no conversation, or nobody answers in it.
    """
    if not isinstance(messages, list) or not messages:
        raise Unusable("no list of messages")
    for place, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Unusable(f"message {place} is no object with a role")
    roles = [message["role"] for message in messages]
    if "user" not in roles:
        raise Unusable("no user's message")
    asked = roles.index("user")
    places = [n for n, role in enumerate(roles) if role == "assistant" and n > asked]
    if not places:
        raise Unusable("no answer")
    return [_answer(messages, place, turn, tools) for turn, place in enumerate(places)]


def _answer(messages: list[Object], place: int, turn: int, tools: Any) -> Answered:
    message = messages[place]
    content, calls = message.get("content"), message.get("tool_calls") or []
    if not (content is None or isinstance(content, str)) or not isinstance(calls, list):
        raise Unusable(f"message {place + 1}: the answer is neither text nor tool calls")
    return Answered(
        messages=messages[:place],
        content=content,
        reasoning=reasoning_of(message),
        tool_calls=calls,
        tools=tools or None,
        turn=turn,
    )
