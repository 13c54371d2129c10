"""One completion of a run judged: a row becomes a sample, whatever the row is.

In: a row of a part of completions, the recipe. Out: a `Sample`. Pure, and total: what cannot be
read is a rejected sample with a reason, so that no row stops its part.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

import tokens
from gpu_stage.recipe import Recipe
from tokens import Counts, Fidelity, Prompt, Reason, Renderer, Sample, Unrenderable

#: What reading JSON from somewhere may raise.
UNREADABLE = (ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Row:
    """What is judged of a completion, as its columns hold it: JSON texts in UTF-8."""

    messages: bytes
    tools: bytes | None
    response: bytes
    provider: str | None


def judge(renderer: Renderer, recipe: Recipe, row: Row) -> Sample:
    """The sample that a completion becomes."""
    return tokens.total(lambda: _judged(renderer, recipe, row))


def _judged(renderer: Renderer, recipe: Recipe, row: Row) -> Sample:
    try:
        prompt = Prompt(
            _list(row.messages), _list(row.tools) if row.tools else None, recipe.thinking
        )
    except (*UNREADABLE, Unrenderable) as error:
        return _rejected(Reason.UNRENDERABLE, f"the prompt: {error}")
    try:
        reply = _reply(row.response)
    except UNREADABLE as error:
        return _rejected(Reason.NO_ANSWER, str(error))
    rules = recipe.rules_of(row.provider)
    sample = tokens.verify(renderer, prompt, reply, rules)
    recovery = recipe.recovery(sample.provider)
    return recovery.recovered(sample, rules) if recovery else sample


def _reply(body: bytes) -> Mapping[str, Any]:
    try:
        reply = msgspec.json.decode(body)  # a plain body of valid JSON: five times faster
    except msgspec.DecodeError:
        return tokens.read_body(body)
    return reply if isinstance(reply, dict) else {}


def _list(text: bytes) -> list[Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = json.loads(text)  # takes half surrogate pairs
    if not isinstance(value, list):
        raise ValueError(f"not a JSON list: {text[:80]!r}")
    return value


def _rejected(reason: Reason, detail: str) -> Sample:
    return Sample(Fidelity.REJECTED, Counts(), reason=reason, detail=detail)
