"""Families with a chat template whose models write `<think>…</think>` before they answer.

Who opens the thought, the generation prompt or the model, is read off the template. Most
templates set a line break after `<think>` and around `</think>`, and some servers strip them
from what they answer: where they are missing they are put back, where they stand they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokens.conversation import Answer, Prompt
from tokens.errors import Unrenderable
from tokens.folder import Folder
from tokens.pieces import Special
from tokens.template_renderer import (
    PROBE,
    PROBE_ANSWER,
    THINK,
    THINK_END,
    THOUGHT,
    TemplateRenderer,
)


class ThinkingRenderer(TemplateRenderer):
    """A template renderer that spells thoughts out."""

    def __init__(self, folder: Folder, family: str, thinking_variable: str) -> None:
        super().__init__(folder, family, thinking_variable)
        self._opening = {choice: self._opened(choice) for choice in (True, False)}
        answered = [*PROBE, {"role": "assistant", "content": PROBE_ANSWER}]
        #: Whether an answer without reasoning has a thought all the same, an empty one.
        self._always_thinks = THINK in self.text(Prompt(answered), generate=False)

    def written(self, answer: Answer, thinking: bool) -> Iterator[str]:
        opening = self._opening[thinking]
        if THINK_END in opening or THINK_END not in self.codec.special:
            if answer.reasoning:
                raise Unrenderable(
                    "the answer has reasoning, and its prompt leaves no place for it"
                )
            yield answer.content or ""
        elif answer.reasoning or opening or (thinking and self._always_thinks):
            yield from self._thought(answer, opening)
        else:
            yield answer.content or ""

    def _thought(self, answer: Answer, opening: str) -> Iterator[str]:
        reasoning, content = answer.reasoning or "", answer.content or ""
        gap = "" if opening == THINK else "\n"
        if not opening:
            yield Special(THINK)
            if not reasoning.startswith(gap):
                yield gap
        yield reasoning
        if not (answer.ended or content or answer.tool_calls):
            return  # cut off within the thought
        if not reasoning.endswith(gap):
            yield gap
        yield Special(THINK_END)
        yield content if content.startswith(gap) else gap * 2 + content

    def _opened(self, thinking: bool) -> str:
        """How the generation prompt begins the thought: not at all, or with `<think>`."""
        found = THOUGHT.search(self.text(Prompt(PROBE, thinking=thinking)))
        return found[0] if found else ""
