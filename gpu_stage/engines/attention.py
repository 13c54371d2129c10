"""Attention over a pack: each sample causally over itself, without a mask of T x T.

Registered with transformers as `packed`, so that its own decoder layers run with it. The
boundaries of the pack reach it as a keyword that the models hand through.

    T   tokens of a pack    n   query heads    m   key and value heads    d   head size
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface

PACKED = "packed"


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, n, T, d]
    key: torch.Tensor,  # [1, m, T, d]
    value: torch.Tensor,  # [1, m, T, d of values]
    attention_mask: None,
    scaling: float | None = None,
    *,
    boundaries: tuple[int, ...],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Output [1, T, n, d of values], and no weights."""
    parts = [
        F.scaled_dot_product_attention(
            query[:, :, start:end],
            key[:, :, start:end],
            value[:, :, start:end],
            is_causal=True,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for start, end in pairwise(boundaries)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def no_mask(**_: Any) -> None:
    """`packed_attention` needs none."""


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, no_mask)
