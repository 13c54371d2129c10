"""A sample, and what a run asks of one.

A `Sample` is what becomes of one response: token ids with a loss mask, how far they are known,
and the counts that say so. Reasons are a closed list, so that reports can count them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fidelity(StrEnum):
    """How far the ids of a sample are known."""

    EXACT = "exact"
    COUNTED = "counted"
    RECOVERED = "recovered"
    NEAR = "near"
    UNVERIFIED = "unverified"
    REJECTED = "rejected"


class Reason(StrEnum):
    """Why a response is no sample."""

    WRONG_PROVIDER = "wrong provider"
    NO_ANSWER = "no answer"
    UNFINISHED = "unfinished"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    LEAKED_THINK = "leaked </think>"
    TOOL_MARKUP = "tool markup in the text"
    HALF_CHARACTER = "half a character"
    UNRENDERABLE = "unrenderable"
    PROMPT_OFF = "prompt count off"
    COMPLETION_OFF = "completion count off"


@dataclass(frozen=True)
class Rules:
    """What a run accepts, and what it has learned of a provider."""

    near_tokens: int = 2
    near_share: float = 0.005
    #: Display names of the providers that may answer; empty allows all.
    providers: frozenset[str] = frozenset()
    #: Whether answers cut off at `max_tokens` are samples.
    truncated: bool = False
    #: Billed minus found, where a provider is known to be off by a constant: for prompts, and
    #: for answers that ended. -1 for the latter: the end token is not billed.
    prompt_offset: int = 0
    completion_offset: int = 0

    def near(self, difference: int, found: int) -> bool:
        return abs(difference) <= self.near_tokens + self.near_share * found


@dataclass(frozen=True)
class Counts:
    """Tokens found by tokenising anew, and billed; None where there is no such count."""

    prompt_found: int | None = None
    prompt_billed: int | None = None
    completion_found: int | None = None
    completion_billed: int | None = None

    @property
    def prompt_difference(self) -> int | None:
        """Billed minus found."""
        return _difference(self.prompt_billed, self.prompt_found)

    @property
    def completion_difference(self) -> int | None:
        """Billed minus found, the end token counted as found."""
        return _difference(self.completion_billed, self.completion_found)


@dataclass(frozen=True)
class Sample:
    """A completion as token ids with a loss mask, and how far they are known."""

    fidelity: Fidelity
    counts: Counts
    provider: str | None = None
    finish_reason: str | None = None
    #: Prefix and completion; a rejected sample may lack them.
    input_ids: tuple[int, ...] = ()
    prompt_length: int = 0
    #: Half-open ranges of `input_ids` that the model wrote.
    loss_spans: tuple[tuple[int, int], ...] = ()
    #: Of a recovered sample: the chance that its ids are the sampled ones.
    confidence: float | None = None
    #: Of a rejected sample.
    reason: Reason | None = None
    detail: str = ""


def _difference(billed: int | None, found: int | None) -> int | None:
    return None if billed is None or found is None else billed - found
