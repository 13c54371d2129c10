"""What a batch, an update or a validation says, step by step.

K   steps
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_stage.draft.objective import Outcome


@dataclass(frozen=True)
class Measures:
    """Sums over slots, [K] float64 each; they add up."""

    #: Divergence, in nats.
    divergence: Tensor
    #: Guesses that are the target's likeliest token, and slots.
    correct: Tensor
    counted: Tensor
    #: Slots whose guesses were right so far, and how many of these are right at this step.
    reached: Tensor
    accepted: Tensor

    @classmethod
    def of(cls, outcome: Outcome) -> Measures:
        right = outcome.correct & outcome.counted  # [K, T]
        before = torch.ones_like(right[0])
        reached, accepted = [], []
        for k in range(len(right)):
            here = before & outcome.counted[k]
            before = before & right[k]
            reached.append(here.sum())
            accepted.append(before.sum())
        sums = (
            outcome.divergence.detach(),
            right.sum(1),
            outcome.counted.sum(1),
            torch.stack(reached),
            torch.stack(accepted),
        )
        return cls(*(one.double().cpu() for one in sums))

    @classmethod
    def none(cls, steps: int) -> Measures:
        return cls(*torch.zeros(5, steps, dtype=torch.float64))

    def __add__(self, other: Measures) -> Measures:
        return Measures.from_table(self.table() + other.table())

    def table(self) -> Tensor:  # [5, K]
        return torch.stack(
            [self.divergence, self.correct, self.counted, self.reached, self.accepted]
        )

    @classmethod
    def from_table(cls, table: Tensor) -> Measures:
        return cls(*table)

    def told(self, weights: Tensor) -> dict[str, Any]:
        """For the log: loss and accuracies; None where nothing was counted.

        Args:
            weights: of the steps, [K].
        """
        mean = self.divergence / self.counted.clamp(min=1)
        conditional = self.accepted / self.reached.clamp(min=1)
        return {
            "loss": float((mean * weights).sum()),
            "divergence": _rounded(mean),
            "accuracy": _rounded(self.correct / self.counted.clamp(min=1)),
            "conditional_accuracy": _rounded(conditional),
            # Simulated: 1 + Σ_k Π_{j≤k} accuracy_j, greedy, a chain as long as the steps.
            "acceptance_length": round(float(1 + conditional.cumprod(0).sum()), 6),
        }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]
