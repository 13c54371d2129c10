"""Samples put behind each other, so that no position is padding.

In: samples by their ids. Out: packs of about `size` tokens. Every sample begins at position 0 and
sees itself alone (`attention.py`), so its states are the same in any pack.

    T   tokens of a pack        S   samples of a pack
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch


@dataclass(frozen=True)
class Pack:
    """Samples behind each other."""

    ids: torch.Tensor  # [T] int64
    #: 0, the end of the first sample, …, T.
    boundaries: tuple[int, ...]  # S + 1

    @property
    def positions(self) -> torch.Tensor:
        """Position of each token in its sample, [T] int64."""
        lengths = [end - start for start, end in self.spans()]
        return torch.cat([torch.arange(length) for length in lengths])

    def spans(self) -> list[tuple[int, int]]:
        """Where each sample lies."""
        return list(zip(self.boundaries, self.boundaries[1:], strict=False))


def make_pack(samples: Sequence[Sequence[int]]) -> Pack:
    """One pack of these samples, in order. Each has a token or more."""
    boundaries = (0, *accumulate(map(len, samples)))
    return Pack(torch.tensor([i for sample in samples for i in sample]), boundaries)


def packs(samples: Iterable[Sequence[int]], size: int) -> Iterator[list[Sequence[int]]]:
    """Groups of samples that have at most `size` tokens together, in order; a longer sample is a
    group of its own."""
    group: list[Sequence[int]] = []
    tokens = 0
    for sample in samples:
        if group and tokens + len(sample) > size:
            yield group
            group, tokens = [], 0
        group.append(sample)
        tokens += len(sample)
    if group:
        yield group
