"""SpecForge: `{"id", "conversations": [{"role", "content"[, "reasoning_content"]}]}`.

Its readers drop every other key of a message, so tools cannot be carried; nor can how an answer
ended. A row is one answer with its history: train on it with `data.train_only_last_turn: true`,
since the answers in the history have rows of their own.
"""

from gpu_stage.conversations.answered import (
    Answered,
    Format,
    Message,
    Object,
    Unusable,
    answers_in,
    check_ended,
    check_no_tools,
    plain_text,
    reasoning_of,
)


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
    message: Object = {"role": role, "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def _read(row: Object) -> list[Answered]:
    if row.get("status", "success") != "success":
        raise Unusable(f"its status is {row['status']!r}")
    return answers_in(row["conversations"], row.get("tools"))


def _recognises(row: Object) -> bool:
    said = row.get("conversations")
    return isinstance(said, list) and all(map(_has_role, said))


def _has_role(message: Message) -> bool:
    return isinstance(message, dict) and "role" in message


SPECFORGE = Format(_recognises, _write, _read)
