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
from tokens.template_renderer import PROBE, THINK, THINK_END, THOUGHT, TemplateRenderer


class ThinkingRenderer(TemplateRenderer):
    """A template renderer that spells thoughts out."""

    def __init__(self, folder: Folder, family: str, thinking_variable: str) -> None:
        super().__init__(folder, family, thinking_variable)
        self._opening = {choice: self._opened(choice) for choice in (True, False)}

    def written(self, answer: Answer, thinking: bool) -> Iterator[str]:
        opening = self._opening[thinking]
        if answer.reasoning and (THINK_END in opening or THINK_END not in self.codec.special):
            raise Unrenderable("the answer has reasoning though its prompt leaves no place for it")
        if answer.reasoning or opening.strip() == THINK:
            yield from self._thought(answer, opening)
        else:
            yield answer.content or ""

    def _thought(self, answer: Answer, opening: str) -> Iterator[str]:
        reasoning, content = answer.reasoning or "", answer.content or ""
        gap = "" if opening == THINK else "\n"
        if not opening:
            yield Special(THINK)
            reasoning = reasoning if reasoning.startswith(gap) else gap + reasoning
        if not (answer.ended or content or answer.tool_calls):  # cut off within the thought
            yield reasoning
            return
        yield reasoning if reasoning.endswith(gap) else reasoning + gap
        yield Special(THINK_END)
        yield content if content.startswith(gap) else gap * 2 + content

    def _opened(self, thinking: bool) -> str:
        """How the generation prompt begins the thought: not at all, or with `<think>`."""
        found = THOUGHT.search(self.text(Prompt(PROBE, thinking=thinking)))
        return found[0] if found else ""
