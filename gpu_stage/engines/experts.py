"""The experts of one mixture layer, kept as the checkpoint stores them.

A layer of Kimi-K2.5 has 384 experts: 34 GB in bf16, 9 GB as stored. So an expert's three matrices
are made when a token is sent to it, and forgotten behind it. In: tensors by name, as
transformers' own expert modules are called with. Out: the same numbers, bit for bit, as their plain
loop ("eager") gives over weights that were made beforehand.

    T   tokens    H   hidden size    I   expert's intermediate size    E   experts    k   per token
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from gpu_stage.engines.dequantise import Quantised, weight

#: An expert's tensors by the end of their names, by projection.
Projections = dict[str, dict[str, torch.Tensor]]
GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"


class StoredExperts(torch.nn.Module):  # type: ignore[misc]
    """Stands where transformers puts a module of stacked expert weights."""

    def __init__(self, act_fn: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self._act_fn, self._dtype = act_fn, dtype
        self._experts: list[Projections] = []
        self._how = Quantised()

    def fill(self, experts: list[Projections], how: Quantised) -> None:
        """Take a layer's experts; an empty list lets go of them."""
        self._experts, self._how = experts, how

    def forward(
        self,
        hidden_states: torch.Tensor,  # [T, H]
        top_k_index: torch.Tensor,  # [T, k]
        top_k_weights: torch.Tensor,  # [T, k]
    ) -> torch.Tensor:
        result = torch.zeros_like(hidden_states)
        # Experts and rows in the order of transformers' loop, so that sums are rounded alike.
        for expert in torch.unique(top_k_index).tolist():
            slot, token = torch.where(expert == top_k_index.T)
            made = self._run(expert, hidden_states[token]) * top_k_weights[token, slot, None]
            result.index_add_(0, token, made.to(result.dtype))
        return result

    def _run(self, expert: int, states: torch.Tensor) -> torch.Tensor:
        stored = self._experts[expert]
        gate, up, down = (weight(stored[name], self._how, self._dtype) for name in (GATE, UP, DOWN))
        # One product for both, as transformers stacks them: its rounding depends on the width.
        left, right = F.linear(states, torch.cat((gate, up))).chunk(2, dim=-1)
        return F.linear(self._act_fn(left) * right, down)
