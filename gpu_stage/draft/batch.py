"""A pack of samples with their hidden states: what one forward pass of the training sees.

T   tokens    H   hidden size    N   samples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gpu_stage.draft.model import Slots
from gpu_stage.draft.objective import Positions


@dataclass(frozen=True)
class Example:
    """One sample."""

    ids: Tensor  # [T] int64
    #: Whether the target wrote the token, [T] bool.
    mask: Tensor
    #: Three aux states, low to high, then the last before the final norm, [T, 4, H].
    states: Tensor

    def cut(self, most: int) -> Example:
        """Its first tokens."""
        return Example(self.ids[:most], self.mask[:most], self.states[:most])


@dataclass(frozen=True)
class Batch:
    """Samples behind each other."""

    ids: Tensor  # [T] int64
    mask: Tensor  # [T] bool
    states: Tensor  # [T, 4, H]
    bounds: tuple[int, ...]  # N + 1

    @property
    def aux(self) -> Tensor:  # [T, 3H]
        return self.states[:, :-1].flatten(1)

    @property
    def last(self) -> Tensor:  # [T, H]
        return self.states[:, -1]

    @property
    def starts(self) -> Tensor:
        """Where the sample of each position begins, [T] int64."""
        return torch.cat([torch.full((b - a,), a) for a, b in pairwise(self.bounds)])

    @property
    def slots(self) -> Slots:
        places = torch.arange(len(self.ids)) - self.starts
        return Slots(places.to(self.ids.device), self.bounds)

    @property
    def positions(self) -> Positions:
        """Position p is counted when the target wrote x[p] and x[p + 1]: at serving time a draft is
        asked behind a token of the target's own, from the first on, and guesses the next."""
        counted = self.mask & torch.roll(self.mask, -1)
        counted[torch.tensor(self.bounds[1:]) - 1] = False  # nothing of its sample follows
        return Positions(counted, self.starts.to(self.ids.device))

    def to(self, device: str | torch.device) -> Batch:
        return Batch(self.ids.to(device), self.mask.to(device), self.states.to(device), self.bounds)


def make_batch(examples: Sequence[Example]) -> Batch:
    """One pack of samples, in order."""
    bounds = [0]
    for example in examples:
        bounds.append(bounds[-1] + len(example.ids))
    return Batch(
        torch.cat([example.ids for example in examples]),
        torch.cat([example.mask for example in examples]),
        torch.cat([example.states for example in examples]),
        tuple(bounds),
    )
