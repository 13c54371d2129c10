"""OpenAI's chat messages: `{"messages": […], "tools": […]}`, tool calls and tool messages included.

Reasoning is `reasoning_content` of the assistant's message, where DeepSeek, Moonshot, vLLM and
SGLang have it; OpenAI's own API has no place for it. How an answer ended cannot be carried.
"""

from gpu_stage.conversations.answered import (
    Answered,
    Format,
    Object,
    Unusable,
    answer_message,
    answers_in,
    check_ended,
)


def _write(answered: Answered) -> Object:
    check_ended(answered)
    row: Object = {"messages": [*answered.messages, answer_message(answered)]}
    if answered.tools:
        row["tools"] = list(answered.tools)
    return row


def _read(row: Object) -> list[Answered]:
    tools = row.get("tools")
    if not (tools is None or isinstance(tools, list)):
        raise Unusable("`tools` is no list")
    return answers_in(row["messages"], tools)


def _recognises(row: Object) -> bool:
    return isinstance(row.get("messages"), list)


OPENAI = Format(_recognises, _write, _read)
