"""How many tokens a dataset's prompts have: counted by the target's tokenizer, or estimated.

In: a file of frozen prompts. Out: `PromptSizes`. Large datasets are sampled evenly. It knows
nothing of money.

The estimate is `BYTES_PER_TOKEN` and `MESSAGE_TOKENS`. Held against Kimi-K2.5's tokenizer on
GSM8K, HumanEval and Spec-Bench it is 2 % high, 14 % low and 13 % high, and 6 % high on all.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producer.frozen import Prompt, iter_chains
from tokens import FolderError, Unrenderable, load

#: Of a dataset, about so many prompts are counted.
SAMPLE = 2_000
BYTES_PER_TOKEN = 4.0
#: What a chat template puts around a message, and before the answer.
MESSAGE_TOKENS = 4
ESTIMATE_ERROR = "within 15 % for each of three English test sets against Kimi-K2.5's tokenizer"

Count = Callable[[list[Any], list[Any] | None], int]


@dataclass(frozen=True)
class PromptSizes:
    """A dataset's prompts. Means are over the prompts that were looked at."""

    prompts: int
    looked_at: int
    #: Tokens of a request, without the answers that are part of it.
    mean_tokens: float
    #: Earlier answers of the same conversation that a request holds.
    answers_before: float
    #: Of those looked at, prompts that no text tokenizer can count, and so estimated.
    not_counted: int


@dataclass(frozen=True)
class Counter:
    """Counts prompts, and says how."""

    count: Count
    how: str


def make_counter(target: Path | None) -> Counter:
    """The target's tokenizer, or the estimate and why."""
    error = f"estimated at {BYTES_PER_TOKEN:g} bytes a token ({ESTIMATE_ERROR})"
    if target is None:
        return Counter(estimate, f"{error}: run.target names no folder with a tokenizer")
    try:
        renderer = load(target)
    except FolderError as problem:
        return Counter(estimate, f"{error}: {problem}")
    return Counter(
        lambda messages, tools: renderer.count_prefix(messages, tools),
        f"counted by the {renderer.family} tokenizer in {target}",
    )


def prompt_sizes(path: Path, prompts: int, count: Count) -> PromptSizes:
    """Look at about `SAMPLE` of a dataset's frozen prompts, evenly spread."""
    stride, next_row = max(1, prompts // SAMPLE), 0
    looked_at = tokens = answers = failed = 0
    for row, chain in iter_chains(path):
        if row < next_row:
            continue
        next_row = row + stride
        history = 0
        for turn, prompt in enumerate(chain):
            own, counted = _count(prompt, count)
            history += own
            tokens, answers = tokens + history, answers + turn
            looked_at, failed = looked_at + 1, failed + (not counted)
    seen = max(1, looked_at)
    return PromptSizes(prompts, looked_at, tokens / seen, answers / seen, failed)


def _count(prompt: Prompt, count: Count) -> tuple[int, bool]:
    """The tokens of a turn's own messages, and whether they were counted."""
    messages = json.loads(prompt.messages)
    tools = json.loads(prompt.tools) if prompt.tools else None
    try:
        return count(messages, tools), True
    except Unrenderable:
        return estimate(messages, tools), False


def estimate(messages: Sequence[Any], tools: Sequence[Any] | None) -> int:
    """Tokens by the length of the texts."""
    texts = [text for message in messages for text in _texts(message)]
    if tools:
        texts.append(json.dumps(tools))
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return round(size / BYTES_PER_TOKEN) + MESSAGE_TOKENS * (len(messages) + 1)


def _texts(message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if calls := message.get("tool_calls"):
        texts.append(json.dumps(calls))
    return [text for text in texts if isinstance(text, str)]
