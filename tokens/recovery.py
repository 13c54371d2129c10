"""Samples whose completion count is off, given the likeliest ids of the billed number.

In: `near` samples, and a prior that was learned from `exact` ones of the same target. Out: the
same samples, some of them `recovered`: their ids spell the same text, are as many as were
billed, and are right with at least `LEAST_CONFIDENCE`, provided that the count is off because of
how the target wrote words. Who hands in the samples has to know that of the provider: one that
does not bill the end token, and whose offset is not in the rules, looks the same here. The other
samples stay as they are, those billed more tokens than were found among them: splits are many,
and the prior does not tell which. Pure.

What it is worth was measured on held-out rows of SmolLM2 at temperature 1 (docs/tokens.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from tokens.edit_prior import Known, Prior, learn
from tokens.errors import TokensError
from tokens.recover import Text, by_prior
from tokens.renderer import Renderer
from tokens.sample import Fidelity, Rules, Sample
from tokens.segmentation import Vocabulary

#: Below it, what is found is right less often than not.
LEAST_CONFIDENCE = 0.2


class Recovery:
    """Finds ids for samples of one target."""

    def __init__(self, renderer: Renderer, prior: Prior) -> None:
        self._vocabulary = vocabulary_of(renderer)
        self._prior = prior
        self._end_id = renderer.end_id

    def recovered(self, sample: Sample, rules: Rules) -> Sample:
        """The sample with other ids, or itself.

        Args:
            rules: as the sample was verified with; its offsets are taken off first.
        """
        billed = _billed(sample, rules, self._end_id)
        if billed is None:
            return sample
        prefix = sample.input_ids[: sample.prompt_length]
        canonical = sample.input_ids[sample.prompt_length :]
        found = by_prior(Text(canonical, billed), self._vocabulary, self._prior)
        if found is None or found.confidence < LEAST_CONFIDENCE:
            return sample
        start, ids = sample.prompt_length, (*prefix, *found.ids)
        return replace(
            sample,
            fidelity=Fidelity.RECOVERED,
            confidence=found.confidence,
            input_ids=ids,
            loss_spans=((start, len(ids)),),
        )


def _billed(sample: Sample, rules: Rules, end_id: int) -> int | None:
    """Tokens that the completion should have; None when it is not one to look at."""
    counts = sample.counts
    if sample.fidelity is not Fidelity.NEAR or counts.completion_billed is None:
        return None
    if counts.prompt_difference != rules.prompt_offset:
        return None
    offset = rules.completion_offset if sample.input_ids[-1] == end_id else 0
    billed = counts.completion_billed - offset
    found = counts.completion_found
    return billed if found is not None and billed < found else None


def learn_prior(renderer: Renderer, samples: Iterable[Sample]) -> Prior:
    """The prior of a target's exact samples; others are passed over.

    A few hundred are enough.

    Raises:
        PriorError: none of them differs from its canonical ids.
    """
    return learn(_known(renderer, samples), vocabulary_of(renderer))


def _known(renderer: Renderer, samples: Iterable[Sample]) -> Iterator[Known]:
    for sample in samples:
        if sample.fidelity is Fidelity.EXACT:
            sampled = sample.input_ids[sample.prompt_length :]
            canonical = canonical_ids(renderer, sampled)
            if canonical is not None:
                yield Known(canonical, sampled)


def canonical_ids(renderer: Renderer, ids: Sequence[int]) -> list[int] | None:
    """The ids that the tokenizer gives for the text of `ids`, special tokens kept.

    None where the ids spell no whole text: a character was cut off.
    """
    canonical: list[int] = []
    for special, run in groupby(ids, lambda token: token in renderer.special_ids):
        part = list(run)
        try:
            canonical += part if special else renderer.encode(renderer.decode(part))
        except TokensError:
            return None
    spelt = (renderer.bytes_of(token) or b"" for token in canonical)
    wanted = (renderer.bytes_of(token) or b"" for token in ids)
    return canonical if b"".join(spelt) == b"".join(wanted) else None


def vocabulary_of(renderer: Renderer) -> Vocabulary:
    """The ordinary tokens of a renderer and their bytes."""
    ordinary = (token for token in range(renderer.size) if token not in renderer.special_ids)
    spellings = ((token, renderer.bytes_of(token)) for token in ordinary)
    return Vocabulary({token: spelling for token, spelling in spellings if spelling})
