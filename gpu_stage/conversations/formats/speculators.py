"""speculators: pre-tokenised rows, `{"id", "primary_id", "input_ids", "loss_mask", "metadata"}`.

Reasoning and tool calls are in the ids as the target wrote them, and `metadata` says how the
answer ended and how far its ids are known, so everything is carried: ids that were made from text
do not come back as sampled ones. `messages` and `tools` stand beside the ids, since nothing else
says which prompt a row answers. They are JSON in text: its readers pass them over, but load a file
as a table, and a column of messages would have as many types as there are shapes of them. A row is
read when its loss mask is one run of ones at the end: an answer behind what the model read. `text`,
which its readers do not use, is not written.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

from fleet.records import canonical_json
from gpu_stage.conversations.answered import (
    Answered,
    CannotCarry,
    Format,
    Ids,
    Object,
    Unusable,
    answer_message,
    answers_in,
)
from gpu_stage.conversations.lines import read_json


def _write(answered: Answered) -> Object:
    if answered.ids is None:
        raise CannotCarry("no ids")
    prompt, completion = answered.ids.prompt, answered.ids.completion
    return {
        "id": answered.prompt_id,
        "primary_id": answered.conversation,
        "input_ids": [*prompt, *completion],
        "loss_mask": [0] * len(prompt) + [1] * len(completion),
        "messages": canonical_json([*answered.messages, answer_message(answered)]),
        "tools": canonical_json(list(answered.tools or ())),
        "metadata": {
            "fidelity": answered.ids.fidelity,
            "finish_reason": answered.finish_reason,
            "is_tool_call": bool(answered.tool_calls),
            "usage": dict(answered.usage) if answered.usage else None,
        },
    }


def _read(row: Object) -> list[Answered]:
    metadata = row.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    ids = replace(_ids(row), fidelity=str(metadata.get("fidelity") or "exact"))
    messages, tools = _listed(row, "messages"), _listed(row, "tools")
    answered = answers_in(messages, tools)[-1] if messages else Answered((), None)
    usage, ended = metadata.get("usage"), metadata.get("finish_reason")
    return [
        replace(
            answered,
            ids=ids,
            finish_reason=ended if isinstance(ended, str) else None,
            usage=usage if isinstance(usage, dict) else None,
        )
    ]


def _listed(row: Object, name: str) -> list[Any]:
    """A list that stands in the row as it is, or as JSON in text."""
    value = row.get(name)
    try:
        value = read_json(value) if isinstance(value, str) and value else value
    except Unusable as error:
        raise Unusable(f"`{name}`: {error}") from error
    if value and not isinstance(value, list):
        raise Unusable(f"`{name}`: no list")
    return value or []


def _ids(row: Object) -> Ids:
    ids, mask = _numbers(row, "input_ids"), _numbers(row, "loss_mask")
    if len(ids) != len(mask):
        raise Unusable("`input_ids` and `loss_mask` are not of one length")
    if set(mask) != {0, 1} or any(a > b for a, b in pairwise(mask)):
        raise Unusable("the loss mask is not zeros and then ones: not one answer at the end")
    start = mask.index(1)
    return Ids(ids[:start], ids[start:])


def _numbers(row: Object, name: str) -> list[int]:
    values = row.get(name)
    if not isinstance(values, list) or not all(type(n) is int and n >= 0 for n in values):
        raise Unusable(f"`{name}` is no list of whole numbers")
    return values


def _recognises(row: Object) -> bool:
    return "input_ids" in row


SPECULATORS = Format(_recognises, _write, _read, needs_ids=True)
