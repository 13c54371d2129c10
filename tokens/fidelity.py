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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokens.conversation import Answer, Prompt
from tokens.errors import HalfCharacter, Unrenderable
from tokens.known_ids import in_vocabulary, known_ids
from tokens.renderer import Markup, Renderer
from tokens.response import Response, read_response
from tokens.sample import Counts, Fidelity, Reason, Rules, Sample


@dataclass(frozen=True)
class _Found:
    """The ids of a response, and which of them came with it."""

    context: Sequence[int]
    completion: Sequence[int]
    context_known: bool
    completion_known: bool
    counts: Counts


def verify(
    renderer: Renderer, prompt: Prompt, reply: Mapping[str, Any], rules: Rules | None = None
) -> Sample:
    """Turn a response into a sample.

    Args:
        reply: the response's JSON object, as `tokens.response.read_body` gives it.
    """
    rules, response = rules or Rules(), read_response(reply)
    answer, billed = response.answer, response.billed
    counts = Counts(prompt_billed=billed.prompt, completion_billed=billed.completion)
    draft = Sample(Fidelity.REJECTED, counts, response.provider)
    if rules.providers and response.provider not in rules.providers:
        return replace(draft, reason=Reason.WRONG_PROVIDER)
    if answer is None:
        return replace(draft, reason=Reason.NO_ANSWER)
    draft = replace(draft, finish_reason=answer.finish_reason)
    if reason := _refused(answer, renderer.markup, rules):
        return replace(draft, reason=reason)
    try:
        found = _find(renderer, prompt, answer, response)
    except HalfCharacter as error:
        return replace(draft, reason=Reason.HALF_CHARACTER, detail=str(error))
    except Unrenderable as error:
        return replace(draft, reason=Reason.UNRENDERABLE, detail=str(error))
    return _filled(draft, found, _judged(found, answer.ended, rules))


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


def _find(renderer: Renderer, prompt: Prompt, answer: Answer, response: Response) -> _Found:
    """The ids that the response says, and those found by tokenising."""
    prefix = renderer.prefix(replace(prompt, day=prompt.day or response.day))
    rendered = renderer.completion(answer, prompt.thinking)
    context = response.prompt_ids
    if context and not in_vocabulary(renderer, context):
        context = None
    completion = known_ids(renderer, response, rendered)
    counts = Counts(len(prefix), response.billed.prompt, len(rendered), response.billed.completion)
    return _Found(
        context or prefix, completion or rendered, bool(context), bool(completion), counts
    )


def _judged(found: _Found, ended: bool, rules: Rules) -> Fidelity | Reason:
    """The ids held against the counts that were billed."""
    counts, offset = found.counts, rules.completion_offset if ended else 0
    prompt_off = _less(counts.prompt_difference, rules.prompt_offset, found.context_known)
    completion_off = _less(counts.completion_difference, offset, found.completion_known)
    if prompt_off is None or completion_off is None:
        return Reason.NO_COUNTS
    if not rules.near(prompt_off, counts.prompt_found or 0):
        return Reason.PROMPT_OFF
    if not rules.near(completion_off, counts.completion_found or 0):
        return Reason.COMPLETION_OFF
    if prompt_off or completion_off:
        return Fidelity.NEAR
    return Fidelity.EXACT if found.completion_known else Fidelity.COUNTED


def _less(difference: int | None, offset: int, known: bool) -> int | None:
    """How far a count is off; ids that are known need no count."""
    if known:
        return 0
    return None if difference is None else difference - offset


def _filled(draft: Sample, found: _Found, verdict: Fidelity | Reason) -> Sample:
    counts, start = found.counts, len(found.context)
    sample = replace(
        draft,
        counts=counts,
        input_ids=(*found.context, *found.completion),
        prompt_length=start,
        loss_spans=((start, start + len(found.completion)),),
    )
    if isinstance(verdict, Fidelity):
        return replace(sample, fidelity=verdict)
    words = (
        f"prompt {counts.prompt_billed} billed, {counts.prompt_found} found; "
        f"completion {counts.completion_billed} billed, {counts.completion_found} found"
    )
    return replace(sample, reason=verdict, detail=words)
