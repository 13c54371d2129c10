"""What the draft is trained for: KL divergence from the target's distribution, at every step.

The target's distribution is over the draft's vocabulary, renormalised (arXiv 2503.01840, section
3). Logits are made for a chunk of positions at a time, for all steps that guess the tokens behind
them; their gradients are made with them, so that nothing of the size K × T × D is ever there.

    T   slots and positions    H   hidden size    D   draft vocabulary    K   steps
    p   a position: at step k the slot p − 1 − k guesses the token behind it
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

#: Rows of logits at a time: with a vocabulary of 32,000 one matrix of them takes 131 MB.
ROWS = 1024


@dataclass(frozen=True)
class Positions:
    """Which positions are counted, and from where on slots may guess them."""

    #: Whether the tokens at and behind each position were written by the target, [T] bool.
    counted: Tensor
    #: Where the sample of each position begins, [T] int64.
    starts: Tensor

    def slots(self, positions: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """(step, slot, place in `positions`) of all that guess the tokens behind them; [R] each."""
        k = torch.arange(steps, device=positions.device)[:, None]
        slots = positions[None] - 1 - k  # [K, C]
        step, place = (slots >= self.starts[positions][None]).nonzero(as_tuple=True)
        return step, slots[step, place], place

    def counts(self, steps: int) -> Tensor:
        """How many slots count at each step, [K] int64."""
        step, _, _ = self.slots(self.counted.nonzero()[:, 0], steps)
        return torch.bincount(step, minlength=steps)


@dataclass(frozen=True)
class TargetHead:
    """The target's final norm and those rows of its head that the draft can guess."""

    norm: Tensor  # [H]
    epsilon: float
    rows: Tensor  # [D, H]

    def log_p(self, last: Tensor) -> Tensor:
        """h[L] of C positions, before the final norm, [C, H] -> [C, D] float32."""
        exact = last.float()
        scaled = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.epsilon)
        normed = self.norm.to(self.rows) * scaled.to(self.rows)
        return linear(normed, self.rows).float().log_softmax(-1)


@dataclass(frozen=True)
class Outcome:
    """What a pack taught."""

    #: Weighted sum over the steps, to go backward from.
    loss: Tensor
    #: Sum of the divergence at each step, in nats, [K].
    divergence: Tensor
    #: Whether slot t guessed the target's likeliest token at step k, and whether it counts,
    #: [K, T] bool.
    correct: Tensor
    counted: Tensor


def divergence(
    normed: Tensor,
    head: Tensor,
    last: Tensor,
    target: TargetHead,
    positions: Positions,
    weights: Tensor,
) -> Outcome:
    """KL(target ‖ draft), summed over slots and weighted by step.

    Args:
        normed: the steps' outputs after the draft's final norm, [K, T, H].
        head: the draft's, [D, H].
        last: h[L] of the target, [T, H].
        weights: of one slot at each step, [K].
    """
    loss, *rest = _Divergence.apply(normed, head, (last, target, positions, weights))
    return Outcome(loss, *rest)


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, normed: Tensor, head: Tensor, given: Any) -> tuple[Tensor, ...]:
        last, target, positions, weights = given
        steps, slots = normed.shape[:2]
        wanted = ctx.needs_input_grad[:2]
        d_normed, d_head = torch.zeros_like(normed), torch.zeros_like(head)
        sums = normed.new_zeros(steps, dtype=torch.float32)
        correct = torch.zeros((steps, slots), dtype=torch.bool, device=normed.device)
        counted = torch.zeros_like(correct)
        for chunk in _chunks(positions.counted.nonzero()[:, 0], steps):
            step, slot, place = positions.slots(chunk, steps)
            x = normed[step, slot]  # [R, H]
            log_p = target.log_p(last[chunk])[place]  # [R, D]
            log_q = linear(x, head).float().log_softmax(-1)
            p = log_p.exp()
            sums.index_add_(0, step, (p * (log_p - log_q)).sum(-1))
            correct[step, slot] = log_q.argmax(-1) == log_p.argmax(-1)
            counted[step, slot] = True
            if any(wanted):
                d_logits = (log_q.exp() - p) * weights[step, None]  # [R, D]
                d_normed[step, slot] = (d_logits.to(x) @ head.to(x)).to(d_normed)
                d_head += d_logits.T.to(x) @ x
        ctx.save_for_backward(d_normed, d_head)
        ctx.mark_non_differentiable(sums, correct, counted)
        return (sums * weights).sum(), sums, correct, counted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        d_normed, d_head = ctx.saved_tensors
        return d_normed * grads[0], d_head * grads[0], None


def _chunks(positions: Tensor, steps: int) -> Iterator[Tensor]:
    yield from positions.split(max(1, ROWS // steps)) if len(positions) else ()
