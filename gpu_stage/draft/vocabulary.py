"""The draft's vocabulary: the target's tokens that its completions are made of.

In: how often each token was written, D. Out: `d2t` and `t2d` as the engines read them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftVocabulary:
    """Which target ids a draft can guess."""

    #: Target id = draft id + d2t[draft id], [D] int64.
    d2t: Tensor
    #: Whether a target id is among them, [V] bool.
    t2d: Tensor
    #: Share of the written tokens that are.
    coverage: float


def choose_vocabulary(counts: Tensor, size: int) -> DraftVocabulary:
    """The `size` most frequent tokens, in the order of their ids; of equally frequent ones the
    lowest ids.

    Args:
        counts: how often the target wrote each of its tokens, [V].
    """
    order = torch.argsort(counts, descending=True, stable=True)
    chosen = order[:size].sort().values
    t2d = torch.zeros(len(counts), dtype=torch.bool)
    t2d[chosen] = True
    coverage = float(counts[chosen].sum() / counts.sum().clamp(min=1))
    return DraftVocabulary(chosen - torch.arange(len(chosen)), t2d, coverage)
