"""Attention of the training-time test against the mask written out, gradients included."""

import math

import pytest
import torch

from gpu_stage.draft.attention import causal, unrolled

BOUNDS = (0, 5, 6, 13)
HEADS, SLOTS, SIZE = 2, BOUNDS[-1], 6


def random(steps: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [
        torch.randn(HEADS, SLOTS, SIZE, dtype=dtype, requires_grad=True)
        for _ in range(2 * steps + 1)
    ]


def dense(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    """The T × kT mask: step 0 causal within its sample, the others at their own slot."""
    sample = torch.bucketize(torch.arange(SLOTS), torch.tensor(BOUNDS[1:]), right=True)
    seen = (sample[:, None] == sample[None]) & torch.ones(SLOTS, SLOTS).tril().bool()
    masks = [seen, *(torch.eye(SLOTS).bool() for _ in keys[1:])]
    scores = q @ torch.cat(keys, dim=1).transpose(1, 2) / math.sqrt(SIZE)
    weights = scores.masked_fill(~torch.cat(masks, dim=1), -math.inf).softmax(-1)
    return weights @ torch.cat(values, dim=1)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_it_equals_the_dense_mask(steps: int) -> None:
    """Output and all gradients, at the first step and later ones, with several samples."""
    tensors = random(steps)
    q, keys, values = tensors[0], tensors[1 : steps + 1], tensors[steps + 1 :]
    found, wanted = unrolled(q, keys, values, BOUNDS), dense(q, keys, values)
    torch.testing.assert_close(found, wanted)
    direction = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, tensors, direction),
        torch.autograd.grad(wanted, tensors, direction),
    )


def test_gradients_of_output_and_log_sum_exp_are_exact() -> None:
    """By differences: both outputs count, as in the sum over steps."""
    q, k, v = random(1)

    def both(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return causal(*given, BOUNDS)

    assert torch.autograd.gradcheck(both, (q, k, v))
