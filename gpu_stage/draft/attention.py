"""Attention of the training-time test, without a T × kT mask.

At step k a query sees step 0's keys at its own slot and before, within its sample, and its own
slot's keys of steps 1 … k. The first is causal attention (O, ℓ) with its log-sum-exp; each of the
others is one more score s_j. Together, exactly:

    out = (e^ℓ O + Σ_j e^{s_j} v_j) / (e^ℓ + Σ_j e^{s_j})

The gradient through ℓ: flash attention's backward computes dS = P ∘ (dP − D), D = rowsum(dO ∘ O);
what is wanted is P ∘ (dP − D + dℓ). A column of zeros on v, of ones on O and of −dℓ on dO turns D
into D − dℓ and leaves all else as it is, so the library's own backward gives it.

    T   slots of a pack    n   heads    d   size of a head    k   the step, from 0
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

#: Flash kernels want the size of a head to be a multiple of it.
ALIGNED = 8


class _Causal(torch.autograd.Function):
    """Causal attention of one sample, [1, n, T, d] each, and its log-sum-exp, [1, n, T]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out, lse, *rest = _flash(q, k, v, scale)
        ctx.save_for_backward(q, k, v, out, lse, *(one for one in rest if _is_tensor(one)))
        ctx.rest, ctx.scale = [None if _is_tensor(one) else one for one in rest], scale
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        d_out, d_lse = grads
        q, k, v, out, lse, *kept = ctx.saved_tensors
        kept = iter(kept)
        rest = [next(kept) if one is None else one for one in ctx.rest]
        size = q.shape[-1]
        more = -(size + 1) % ALIGNED + 1
        wide = [pad(one, (0, more)) for one in (q, k, v)]
        ones = out.new_ones((*out.shape[:-1], 1))
        out = torch.cat([out, pad(ones, (0, more - 1))], dim=-1)
        d_out = torch.cat([d_out, pad(-d_lse[..., None].to(d_out), (0, more - 1))], dim=-1)
        found = _flash_backward(d_out, wide, out, lse, rest, ctx.scale)
        d_q, d_k, d_v = (one[..., :size] for one in found)
        return d_q, d_k, d_v, None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Sequence[Any]:
    """Output, log-sum-exp, and what the backward wants to have back."""
    if q.is_cuda:
        out, lse, *rest = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, True, scale=scale
        )
        return [out, lse, *rest[:-1]]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, True, scale=scale
    )


def _flash_backward(
    d_out: Tensor, wide: Sequence[Tensor], out: Tensor, lse: Tensor, rest: list[Any], scale: float
) -> Sequence[Tensor]:
    if d_out.is_cuda:
        first_q, first_k, most_q, most_k, seed, offset = rest
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            d_out, *wide, out, lse, first_q, first_k, most_q, most_k, 0.0, True, seed, offset,
            scale=scale,
        )  # fmt: skip
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, *wide, out, lse, 0.0, True, scale=scale
    )


def causal(q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Causal attention within each sample of a pack.

    Args:
        q, k, v: [n, T, d].
        bounds: where samples begin, and T.

    Returns:
        The output, [n, T, d], and the log-sum-exp of the scores, [n, T].
    """
    scale = q.shape[-1] ** -0.5
    parts = [
        _Causal.apply(q[None, :, a:b], k[None, :, a:b], v[None, :, a:b], scale)
        for a, b in pairwise(bounds)
    ]
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs, dim=2)[0], torch.cat(lses, dim=2)[0]


def unrolled(
    q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], bounds: Sequence[int]
) -> Tensor:
    """Attention at step k, [n, T, d].

    Args:
        q: of step k, [n, T, d].
        keys, values: of steps 0 … k, [n, T, d] each.
    """
    out, lse = causal(q, keys[0], values[0], bounds)
    if len(keys) == 1:
        return out
    scale = q.shape[-1] ** -0.5
    own = [(q * key).sum(-1, dtype=lse.dtype) * scale for key in keys[1:]]  # [n, T] each
    scores = torch.stack([lse, *own])  # [k + 1, n, T]
    weights = scores.softmax(dim=0)[..., None].to(out.dtype)  # [k + 1, n, T, 1]
    parts = (weight * value for weight, value in zip(weights, [out, *values[1:]], strict=True))
    return torch.stack(list(parts)).sum(dim=0)
