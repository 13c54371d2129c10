"""How far a completion's token ids are known: a response turned into a sample, or refused.

    exact     the response carried ids, or per-token bytes, and they spell the text
    counted   tokenised anew, and both counts are what was billed
    near      a count is off by at most the tolerance: models do write uncanonical tokens
    rejected  anything else, with a reason

In: a renderer, a prompt, a response as recorded, rules. Out: a `Sample`. Pure: the same input
gives the same sample, whenever and wherever. Invariant: a sample that is not rejected has a
prefix, a completion behind it, and a loss mask over the completion alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tokens.conversation import Answer, Prompt
from tokens.errors import HalfCharacter, Unrenderable
from tokens.known_ids import known_ids
from tokens.renderer import Markup, Renderer
from tokens.response import Response, read_response


class Fidelity(StrEnum):
    """How far the ids of a sample are known."""

    EXACT = "exact"
    COUNTED = "counted"
    NEAR = "near"
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
    NO_COUNTS = "no counts"
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
    #: Of a rejected sample.
    reason: Reason | None = None
    detail: str = ""


def verify(
    renderer: Renderer, prompt: Prompt, reply: Mapping[str, Any], rules: Rules | None = None
) -> Sample:
    """Turn a response into a sample.

    Args:
        reply: the response's JSON object, as `tokens.response.read_body` gives it.
    """
    rules, response = rules or Rules(), read_response(reply)
    billed = Counts(
        prompt_billed=response.billed.prompt, completion_billed=response.billed.completion
    )
    draft = Sample(Fidelity.REJECTED, billed, response.provider)
    if rules.providers and response.provider not in rules.providers:
        return replace(draft, reason=Reason.WRONG_PROVIDER)
    if response.answer is None:
        return replace(draft, reason=Reason.NO_ANSWER)
    draft = replace(draft, finish_reason=response.answer.finish_reason)
    if reason := _refused(response.answer, renderer.markup, rules):
        return replace(draft, reason=reason)
    try:
        return _judged(_rendered(renderer, prompt, response, draft), response, rules)
    except HalfCharacter as error:
        return replace(draft, reason=Reason.HALF_CHARACTER, detail=str(error))
    except Unrenderable as error:
        return replace(draft, reason=Reason.UNRENDERABLE, detail=str(error))


def _refused(answer: Answer, markup: Markup, rules: Rules) -> Reason | None:
    """What rules an answer out before it is tokenised."""
    texts = (answer.content or "", answer.reasoning or "")
    if not answer.ended and answer.finish_reason != "length":
        return Reason.UNFINISHED
    if not answer.ended and not rules.truncated:
        return Reason.TRUNCATED
    if any(token in text for token in markup.tools for text in texts):
        return Reason.TOOL_MARKUP
    if any(token in text for token in markup.think for text in texts):
        return Reason.LEAKED_THINK
    needed = texts[:1] if answer.ended else texts
    if not answer.tool_calls and not any(text.strip() for text in needed):
        return Reason.EMPTY
    return None


def _rendered(renderer: Renderer, prompt: Prompt, response: Response, draft: Sample) -> Sample:
    """The draft with its ids and what was found; EXACT where the completion's are known."""
    assert response.answer is not None
    prefix = renderer.prefix(replace(prompt, day=prompt.day or response.day))
    rendered = renderer.completion(response.answer, prompt.thinking)
    known = known_ids(renderer, response, rendered)
    context, completion = response.prompt_ids or prefix, known or rendered
    length = len(context) + len(completion)
    return replace(
        draft,
        fidelity=Fidelity.EXACT if known else Fidelity.COUNTED,
        counts=replace(draft.counts, prompt_found=len(prefix), completion_found=len(rendered)),
        input_ids=(*context, *completion),
        prompt_length=len(context),
        loss_spans=((len(context), length),),
    )


def _judged(sample: Sample, response: Response, rules: Rules) -> Sample:
    """The sample held against the counts that were billed."""
    assert response.answer is not None
    counts, exact = sample.counts, sample.fidelity is Fidelity.EXACT
    offset = rules.completion_offset if response.answer.ended else 0
    prompt_off = 0 if response.prompt_ids else _less(counts.prompt_difference, rules.prompt_offset)
    completion_off = 0 if exact else _less(counts.completion_difference, offset)
    if prompt_off is None or completion_off is None:
        return _rejected(sample, Reason.NO_COUNTS)
    if not rules.near(prompt_off, counts.prompt_found or 0):
        return _rejected(sample, Reason.PROMPT_OFF)
    if not rules.near(completion_off, counts.completion_found or 0):
        return _rejected(sample, Reason.COMPLETION_OFF)
    return replace(sample, fidelity=Fidelity.NEAR) if prompt_off or completion_off else sample


def _rejected(sample: Sample, reason: Reason) -> Sample:
    counts = sample.counts
    words = (
        f"prompt {counts.prompt_billed} billed, {counts.prompt_found} found; "
        f"completion {counts.completion_billed} billed, {counts.completion_found} found"
    )
    return replace(sample, fidelity=Fidelity.REJECTED, reason=reason, detail=words)


def _difference(billed: int | None, found: int | None) -> int | None:
    return None if billed is None or found is None else billed - found


def _less(difference: int | None, offset: int) -> int | None:
    return None if difference is None else difference - offset
