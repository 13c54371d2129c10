"""What an engine gives for a pack, and the interface of engines.

T   tokens    H   hidden size    V   vocabulary
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gpu_stage.engines.layers import Layers
from gpu_stage.engines.packing import Pack


@dataclass(frozen=True)
class States:
    """States of a pack, on the CPU, in the engine's dtype."""

    #: h at the three aux layers, then h[L] before the final norm.
    all: torch.Tensor  # [T, 4, H]

    @property
    def aux(self) -> torch.Tensor:  # [T, 3, H]
        return self.all[:, :-1]

    @property
    def last(self) -> torch.Tensor:  # [T, H]
        return self.all[:, -1]


class Engine(ABC):
    """A target that can be read."""

    layers: Layers
    hidden_size: int
    vocabulary: int
    dtype: torch.dtype

    @abstractmethod
    def states(self, packs: Sequence[Pack]) -> Iterator[States]:
        """The states of every token of each pack, in order.

        What is read at once is the engine's own matter: one pack, or all of them layer by layer.
        """

    @abstractmethod
    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Head and final norm over `last`: [T, H] -> [T, V], in float32, where the head is."""
