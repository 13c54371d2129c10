"""A list of messages → the turns that the target is to write.

In: messages as the dataset has them and the dataset's `turns`. Out: for each answer wanted,
the messages before it that come after the answer before. Invariant: no turn is without a
user (or tool) message, and none ends with an assistant's. User messages that follow each
other stay together in one turn.

`last`: one turn, all up to the last user or tool message; earlier answers stay as context.
`all`: a turn ends where the dataset has an answer to a user; that answer is dropped and
written anew. What an assistant says before the first user message stays, as context.
Whatever follows the last user or tool message is dropped.
"""

from typing import Any, Literal

from fleet.records import Message
from producer.messages import Unusable, check_tool_answers, normalise, role_of


def split_messages(
    values: list[Any], where: str, turns: Literal["last", "all"]
) -> list[list[Message]]:
    """The turns of a conversation."""
    places = [f"message {number} of {where}" for number in range(1, len(values) + 1)]
    roles = [role_of(value, place) for value, place in zip(values, places, strict=True)]
    if "user" not in roles:
        raise Unusable("no user turn", f"{where} has no user turn")
    end = max(index for index, role in enumerate(roles) if role in ("user", "tool")) + 1
    if turns == "last":
        messages = _normalised(values[:end], roles[:end], places[:end])
        check_tool_answers(messages, where)
        return [messages]
    calls = any(isinstance(value, dict) and value.get("tool_calls") for value in values[:end])
    if calls or "tool" in roles[:end]:
        reason = (
            f"{where} has tool calls, whose results answer the old calls and not those that "
            'would be made anew; use turns = "last" for it'
        )
        raise Unusable("tool calls", reason)
    return _each_turn(values[:end], roles[:end], places[:end])


def _normalised(values: list[Any], roles: list[str], places: list[str]) -> list[Message]:
    messages = map(normalise, values, roles, places)
    return [message for message in messages if message is not None]


def _each_turn(values: list[Any], roles: list[str], places: list[str]) -> list[list[Message]]:
    result: list[list[Message]] = []
    current: list[Message] = []
    asked = False  # whether `current` has a user message
    for value, role, place in zip(values, roles, places, strict=True):
        if role == "assistant" and (asked or result):
            if asked:
                result.append(current)
                current, asked = [], False
            continue
        message = normalise(value, role, place)
        if message is not None:
            current.append(message)
        asked = asked or role == "user"
    return [*result, current]
