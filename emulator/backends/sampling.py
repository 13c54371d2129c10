"""The next token of each row, by its own temperature, top-p and random numbers.

Legend: B rows, V vocabulary. Logprobs are the model's own (before temperature and
top-p), as the API's are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Sampled(NamedTuple):
    """One token, and its logprob and alternatives if they were asked for."""

    token_id: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Wish(Protocol):
    """What a row says about its sampling."""

    temperature: float
    top_p: float
    top_logprobs: int | None
    rng: random.Random


def sample(logits: torch.Tensor, rows: Sequence[Wish]) -> list[Sampled]:
    """One token for each row of the logits [B, V]."""
    token_ids = choose(logits, rows)
    if all(row.top_logprobs is None for row in rows):
        return [Sampled(token_id) for token_id in token_ids]
    logprobs = logits.log_softmax(-1)
    return [
        Sampled(token_id)
        if row.top_logprobs is None
        else _with_logprob(logprobs[index], token_id, row.top_logprobs)
        for index, (row, token_id) in enumerate(zip(rows, token_ids, strict=True))
    ]


def choose(logits: torch.Tensor, rows: Sequence[Wish]) -> list[int]:
    """The token ids: the likeliest at temperature 0, else drawn by inverting the CDF."""
    temperatures = torch.tensor([[max(row.temperature, 1e-6)] for row in rows])
    probabilities = (logits / temperatures).softmax(-1).double()  # [B, V]
    for index, row in enumerate(rows):
        if row.top_p < 1 and row.temperature > 0:
            probabilities[index] = _nucleus(probabilities[index], row.top_p)
    cumulative = probabilities.cumsum(-1)
    draws = torch.tensor([[row.rng.random()] for row in rows], dtype=torch.double)
    drawn = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)
    greedy = logits.argmax(-1).tolist()
    return [
        greedy[index] if row.temperature <= 0 else min(token_id, logits.shape[-1] - 1)
        for index, (row, token_id) in enumerate(zip(rows, drawn[:, 0].tolist(), strict=True))
    ]


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """[V] with all but the smallest set of tokens that reaches top_p set to 0."""
    ordered, order = probabilities.sort(descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probabilities.index_fill(0, order[outside], 0.0)


def _with_logprob(logprobs: torch.Tensor, token_id: int, alternatives: int) -> Sampled:
    top = logprobs.topk(alternatives) if alternatives else None
    pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True)) if top else ()
    return Sampled(token_id, float(logprobs[token_id]), pairs)
