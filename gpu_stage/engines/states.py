"""What an engine gives for a pack, and the interface of engines.

    T   tokens    H   hidden size    V   vocabulary
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from gpu_stage.engines.layers import Layers
from gpu_stage.engines.packing import Pack


@dataclass(frozen=True)
class States:
    """States of a pack, on the CPU, in the engine's dtype."""

    #: h at the three aux layers.
    aux: torch.Tensor  # [T, 3, H]
    #: h[L], before the final norm.
    last: torch.Tensor  # [T, H]


class Engine(ABC):
    """A target that can be read."""

    layers: Layers
    hidden_size: int
    dtype: torch.dtype

    @abstractmethod
    def states(self, pack: Pack) -> States:
        """The states of every token of a pack."""

    @abstractmethod
    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Head and final norm over `last`: [T, H] -> [T, V], in float32."""
