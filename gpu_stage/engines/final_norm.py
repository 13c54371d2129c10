"""What stands between a target's last state and its logits: the final norm, and the head.

T   tokens    H   hidden size    V   vocabulary
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import linear

from fleet.errors import ConfigError
from gpu_stage.engines.checkpoint import Checkpoint
from gpu_stage.engines.target_config import read_config


@dataclass(frozen=True)
class FinalNorm:
    """The target's last RMSNorm: y = x / √(mean(x²) + ε) · w (Zhang and Sennrich, 2019)."""

    weight: torch.Tensor  # [H]
    epsilon: float

    def of(self, last: torch.Tensor) -> torch.Tensor:
        """[T, H], rounded where transformers' own RMSNorm rounds."""
        exact = last.float()
        scaled = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * scaled.to(last.dtype)

    def before(self, normed: torch.Tensor) -> torch.Tensor:
        """A state that has this norm. Its length is lost, and 1 in the mean square; nothing that
        is made behind the norm can tell."""
        return (normed.float() / self.weight.float()).to(normed.dtype)


@dataclass(frozen=True)
class Head:
    """Final norm and output embedding."""

    norm: FinalNorm
    weight: torch.Tensor  # [V, H]

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, V], in float32, where the head is."""
        return linear(self.norm.of(last.to(self.weight.device)), self.weight).float()


def read_norm(target: Path) -> FinalNorm:
    """
    Raises:
        ConfigError: the folder holds no target, or one whose last norm is not an RMSNorm.
    """
    epsilon = getattr(read_config(target), "rms_norm_eps", None)
    if epsilon is None:
        raise ConfigError(f"{target}: its config.json has no rms_norm_eps; its norm is not known")
    with Checkpoint(target) as checkpoint:
        return FinalNorm(checkpoint.get("norm.weight").to(torch.bfloat16, copy=True), epsilon)


def read_head(target: Path, device: str = "cpu") -> Head:
    """In bf16.

    Raises:
        ConfigError: see `read_norm`.
    """
    norm = read_norm(target)
    with Checkpoint(target) as checkpoint:
        weight = checkpoint.head().to(device, torch.bfloat16, copy=True)
    return Head(FinalNorm(norm.weight.to(device), norm.epsilon), weight)
