"""The interface of a model family: messages and answers in, token ids out.

A family implements the abstract methods; `tokens/families/` has one file for each. Invariants,
tested for every family: `decode(encode(text)) == text`, and no id of `encode` is special.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tokens.conversation import Answer, Message, Prompt, Tool


@dataclass(frozen=True)
class Markup:
    """What an engine takes out of an answer's text; left in, the answer was not parsed."""

    think: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


class Renderer(ABC):
    """Text to ids and back, as one model family's chat template has it."""

    #: The family's name in the registry.
    family: str
    #: The token that ends an answer.
    end_id: int
    #: One more than the highest id.
    size: int
    markup: Markup = Markup()
    #: Tokens that engines leave out of an answer's text (`skip_special_tokens`).
    control_ids: frozenset[int] = frozenset()
    #: Tokens that no text becomes; every other id is one of `encode`'s.
    special_ids: frozenset[int] = frozenset()

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

    @abstractmethod
    def bytes_of(self, token_id: int) -> bytes | None:
        """What a token spells, a special token its name; None when the vocabulary cannot say."""

    @cached_property
    def ids_by_bytes(self) -> Mapping[bytes, int]:
        """The token of a spelling, where only one has it."""
        spellings = [(self.bytes_of(number), number) for number in range(self.size)]
        times = Counter(spelling for spelling, _ in spellings)
        return {spelt: number for spelt, number in spellings if spelt and times[spelt] == 1}

    def count_prefix(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        thinking: bool = True,
    ) -> int:
        """How many prompt tokens a provider bills for this conversation.

        Raises:
            Unrenderable: a message or a tool that the template has no place for.
        """
        return len(self.prefix(Prompt(messages, tools, thinking)))
