"""One sample with its states, as it stands between our shards and another's files.

T   tokens    H   hidden size
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Plain:
    """A sample."""

    #: What it is called there, for messages.
    name: str
    ids: torch.Tensor  # [T] int64
    mask: torch.Tensor  # [T] bool
    #: Low, middle, high, and last before the final norm.
    states: torch.Tensor  # [T, 4, H] bf16
