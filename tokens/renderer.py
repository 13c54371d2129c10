"""The interface of a model family: messages and answers in, token ids out.

A family implements five methods; `tokens/families/` has one file for each. Invariants, tested
for every family: `decode(encode(text)) == text`, and no id of `encode` is a special token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tokens.conversation import Answer, Message, Prompt, Tool


class Renderer(ABC):
    """Text to ids and back, as one model family's chat template has it."""

    #: The family's name in the registry.
    family: str
    #: The token that ends an answer.
    end_id: int

    @abstractmethod
    def prefix(self, prompt: Prompt) -> list[int]:
        """Ids of the chat template over the prompt, generation prompt included.

        Raises:
            Unrenderable: a message or a tool that the template has no place for.
        """

    @abstractmethod
    def completion(self, answer: Answer, thinking: bool = True) -> list[int]:
        """Ids of what the model wrote after the prefix, end token included if it ended.

        Raises:
            Unrenderable: the answer has a part that the family has no place for.
        """

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of plain text; what spells a special token stays text."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens spelt out; torn characters become U+FFFD."""

    def count_prefix(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> int:
        """How many prompt tokens a provider bills for this conversation."""
        return len(self.prefix(Prompt(messages, tools)))
