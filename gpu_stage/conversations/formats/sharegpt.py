"""ShareGPT: `{"id", "conversations": [{"from": "system|human|gpt", "value"}]}`.

There is one text for an answer, so reasoning stands before the content, between `<think>` and
`</think>` and with nothing else around it. Tools and how an answer ended cannot be carried, nor a
content that looks like a thought itself.
"""

from gpu_stage.conversations.answered import (
    Answered,
    CannotCarry,
    Format,
    Object,
    Unusable,
    answers_in,
    check_ended,
    check_no_tools,
    plain_text,
    reasoning_of,
)

NAMES = {"system": "system", "user": "human", "assistant": "gpt"}
ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant"}
THINK, THINK_END = "<think>", "</think>"


def _write(answered: Answered) -> Object:
    check_no_tools(answered)
    check_ended(answered)
    said = [
        _message(message["role"], plain_text(message.get("content")), reasoning_of(message))
        for message in answered.messages
    ]
    answer = _message("assistant", answered.content or "", answered.reasoning)
    return {"id": answered.prompt_id, "conversations": [*said, answer]}


def _message(role: str, content: str, reasoning: str | None) -> Object:
    if role not in NAMES:
        raise CannotCarry(f"the role {role!r}")
    if THINK_END in (reasoning or "") or (not reasoning and content.startswith(THINK)):
        raise CannotCarry("text that looks like the end of a thought")
    value = f"{THINK}{reasoning}{THINK_END}{content}" if reasoning else content
    return {"from": NAMES[role], "value": value}


def _read(row: Object) -> list[Answered]:
    return answers_in([_said(message) for message in row["conversations"]])


def _said(message: Object) -> Object:
    name, value = message["from"], message.get("value")
    if name not in ROLES or not isinstance(value, str):
        raise Unusable(f"a message from {name!r}, or without a value: only plain talk is read")
    said: Object = {"role": ROLES[name], "content": value}
    if said["role"] == "assistant" and value.startswith(THINK) and THINK_END in value:
        reasoning, _, content = value.removeprefix(THINK).partition(THINK_END)
        said |= {"content": content, "reasoning_content": reasoning}
    return said


def _recognises(row: Object) -> bool:
    said = row.get("conversations")
    return isinstance(said, list) and bool(said) and all(map(_has_sender, said))


def _has_sender(message: object) -> bool:
    return isinstance(message, dict) and "from" in message


SHAREGPT = Format(_recognises, _write, _read)
