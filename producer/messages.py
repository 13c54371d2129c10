"""A list of messages as datasets have it → messages as the API takes them.

In: dicts with `role` and `content` (OpenAI) or `from` and `value` (ShareGPT), decoded from any
file. Out: messages of the roles system, user, assistant and tool, with text content, or
`Unusable`. Invariant: what comes out is JSON, has no empty message, and every tool message
answers a call made before it. Only these keys are kept: role, content, name, tool_calls,
tool_call_id, reasoning, reasoning_content.
"""

import json
from typing import Any

from fleet.records import Message

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
}
TEXT_PARTS = ("text", "input_text", "output_text")
KEPT_TEXTS = ("name", "reasoning", "reasoning_content")


class Unusable(Exception):
    """A row is no prompt; args are a stable kind and a sentence."""

    @property
    def kind(self) -> str:
        return str(self.args[0])

    @property
    def reason(self) -> str:
        return str(self.args[1])


def is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or "from" in value)


def role_of(message: Any, where: str) -> str:
    """The API's role of a message; `where` names it in the reason."""
    if not isinstance(message, dict):
        raise Unusable("wrong type", f"{where} is {kind_of(message)}, expected an object")
    name = message.get("role")
    if name is None:
        name = message.get("from")
    if name is None:
        raise Unusable("no role", f"{where} has neither `role` nor `from`")
    if not isinstance(name, str):
        raise Unusable("wrong type", f"the role of {where} is {kind_of(name)}, expected text")
    role = ROLES.get(name.strip().lower())
    if role is None:
        known = ", ".join(ROLES)
        raise Unusable("unknown role", f"{where} has the unknown role {name!r}; known are {known}")
    return role


def normalise(message: Message, role: str, where: str) -> Message | None:
    """The message as it is sent; None for an empty system message, which says nothing."""
    calls = _tool_calls(message.get("tool_calls"), where) if role == "assistant" else []
    content = _content(message, where, optional=bool(calls))
    if content is None or not content.strip():
        if role == "system":
            return None
        if role != "tool" and not calls:
            raise Unusable("empty message", f"{where} ({role}) is empty")
    result: Message = {"role": role, "content": content}
    for key in KEPT_TEXTS:
        if isinstance(text := message.get(key), str) and text:
            result[key] = clean(text, f"`{key}` of {where}")
    if calls:
        result["tool_calls"] = calls
    if role == "tool":
        result["tool_call_id"] = _call_id(message, where)
    return result


def check_tool_answers(messages: list[Message], where: str) -> None:
    """Every tool message answers a call of an earlier assistant message, as the API demands."""
    called: set[str] = set()
    for message in messages:
        called.update(call["id"] for call in message.get("tool_calls", ()))
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            name = message["tool_call_id"]
            raise Unusable("tool message", f"{where}: no tool call before it has the id {name!r}")


def clean(text: str, where: str) -> str:
    """The text, if an API can take it: no NUL, no half of a surrogate pair."""
    if "\0" in text:
        raise Unusable("NUL bytes", f"{where} holds a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            reason = f"{where} holds half of a surrogate pair, U+{code:04X}"
            raise Unusable("lone surrogate", reason) from None
    return text


def plain_json(value: Any, where: str) -> Any:
    """The value, if it is JSON that can be sent."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except RecursionError:
        raise Unusable("wrong type", f"{where} is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise Unusable("wrong type", f"{where} is not JSON: {error}") from None
    clean(text, where)
    return value


def kind_of(value: Any) -> str:
    """What a value is, in the words of JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
    return f"a value of type {type(value).__name__}"


def _content(message: Message, where: str, optional: bool) -> str | None:
    value = message.get("content")
    if value is None and "role" not in message:
        value = message.get("value")
    elif value is None:
        value = message.get("value") or message.get("text")
    if isinstance(value, str):
        return clean(value, f"the content of {where}")
    if value is None:
        if optional:
            return None
        raise Unusable("empty message", f"{where} has no content (it is null or absent)")
    if isinstance(value, list):
        parts = (_part(part, f"part {n} of {where}") for n, part in enumerate(value, start=1))
        return "".join(parts)
    raise Unusable("wrong type", f"the content of {where} is {kind_of(value)}, expected text")


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return clean(part, where)
    if not isinstance(part, dict):
        raise Unusable("wrong type", f"{where} is {kind_of(part)}, expected text")
    kind = part.get("type", "text")
    if kind not in TEXT_PARTS:
        raise Unusable("not text", f"{where} is of type {kind!r}; only text can be used")
    text = part.get("text")
    if not isinstance(text, str):
        raise Unusable("wrong type", f"the text of {where} is {kind_of(text)}, expected text")
    return clean(text, where)


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    value = from_json(value, f"`tool_calls` of {where}")
    if not value:
        return []
    if not isinstance(value, list):
        reason = f"`tool_calls` of {where} is {kind_of(value)}, expected a list"
        raise Unusable("wrong type", reason)
    return [_call(call, f"tool call {n} of {where}") for n, call in enumerate(value, start=1)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unusable("tool call", f"{where} names no function")
    if not isinstance(call.get("id"), str):
        raise Unusable("tool call", f"{where} has no id")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        plain_json(arguments, f"the arguments of {where}")
        arguments = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    name = clean(function["name"], where)
    function = {"name": name, "arguments": clean(arguments, where)}
    return {"id": clean(call["id"], where), "type": "function", "function": function}


def _call_id(message: Message, where: str) -> str:
    name = message.get("tool_call_id")
    if not isinstance(name, str) or not name:
        raise Unusable("tool message", f"{where} is a tool's answer without `tool_call_id`")
    return clean(name, where)


def from_json(value: Any, where: str) -> Any:
    """A list or object that a column holds as JSON text (CSV has no other way)."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        reason = f"{where} holds text that is not JSON, expected a list"
        raise Unusable("not JSON", reason) from None
