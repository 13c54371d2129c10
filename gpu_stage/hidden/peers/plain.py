"""One sample with its states, as it stands between our shards and another's files.

T   tokens    H   hidden size
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from fleet.errors import ConfigError
from gpu_stage.engines.checkpoint import Checkpoint
from gpu_stage.engines.target_config import read_config


@dataclass(frozen=True)
class Plain:
    """A sample."""

    #: What it is called there, for messages.
    name: str
    ids: torch.Tensor  # [T] int64
    mask: torch.Tensor  # [T] bool
    #: Low, middle, high, and last before the final norm.
    states: torch.Tensor  # [T, 4, H] bf16


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


def final_norm(target: Path) -> FinalNorm:
    """
    Raises:
        ConfigError: the folder holds no target, or one whose last norm is not an RMSNorm.
    """
    config = read_config(target)
    epsilon = getattr(config, "rms_norm_eps", None)
    if epsilon is None:
        raise ConfigError(f"{target}: its config.json has no rms_norm_eps; its norm is not known")
    with Checkpoint(target) as checkpoint:
        weight = checkpoint.get("norm.weight").to(torch.bfloat16, copy=True)
    return FinalNorm(weight, epsilon)
