"""Continuous batching of one small model: rows join and leave between any two tokens.

Legend: B rows in flight, T cached positions, H key/value heads, D head size, V
vocabulary. The cache of a row is padded on the left, so that the newest position of all
rows is the last column; keys carry their rotary position already, so padding does not
move them.

In: `Row`s. Out: the same rows, finished. It knows nothing of text, HTTP or threads;
whoever drives it does so under `torch.inference_mode()`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from .sampling import Sampled, sample


@dataclass
class Row:
    """One prompt on its way to a completion."""

    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    rng: random.Random
    #: Alternatives to report beside each token. None: no logprobs.
    top_logprobs: int | None = None
    #: Strings that end the completion; the decoder's user looks for them.
    stop: tuple[str, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    finish: str = ""


class Decoder:
    """The rows in flight and their shared cache."""

    def __init__(self, model: Any, end_id: int) -> None:
        self.model = model
        self.end_id = end_id
        self.rows: list[Row] = []
        self.cache: Any = None
        self.mask = torch.zeros(0, 0, dtype=torch.long)  # [B, T], 0 is padding

    def admit(self, row: Row) -> None:
        """Prefill one row, give it its first token, and let it join.

        One at a time: prefill is bound by arithmetic, which padding would waste.
        """
        ids = torch.tensor([row.prompt_ids])  # [1, T]
        cache = DynamicCache()
        logits = self.model(input_ids=ids, cache=cache, logits_to_keep=1).logits[:, -1]  # [1, V]
        self._extend([row], logits)
        self._join(row, cache, torch.ones_like(ids))

    def step(self) -> None:
        """One more token for every row."""
        ids = torch.tensor([[row.token_ids[-1]] for row in self.rows])  # [B, 1]
        self.mask = pad(self.mask, (0, 1), value=1)
        positions = self.mask.sum(-1, keepdim=True) - 1  # [B, 1]
        logits = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            cache=self.cache,
        ).logits[:, -1]
        self._extend(self.rows, logits)

    def retire(self) -> list[Row]:
        """Take out the finished rows, and the columns that only they needed."""
        done = [row for row in self.rows if row.finish]
        if done:
            keep = [index for index, row in enumerate(self.rows) if not row.finish]
            self.rows = [self.rows[index] for index in keep]
            self.mask = self.mask[keep]
            used = int(self.mask.sum(-1).max()) if keep else 0
            self.mask = self.mask[:, self.mask.shape[1] - used :]
            for layer in self.cache.layers:
                # [B, H, T, D]; negative start keeps the newest columns
                layer.keys = layer.keys[keep, :, layer.keys.shape[2] - used :]
                layer.values = layer.values[keep, :, layer.values.shape[2] - used :]
        return done

    def _extend(self, rows: list[Row], logits: torch.Tensor) -> None:
        """Sample a token for each row; the end token and max_tokens finish it."""
        for row, sampled in zip(rows, sample(logits.float(), rows), strict=True):
            row.token_ids.append(sampled.token_id)
            row.sampled.append(sampled)
            if sampled.token_id == self.end_id:
                row.finish = "stop"
            elif len(row.token_ids) >= row.max_tokens:
                row.finish = "length"

    def _join(self, row: Row, cache: Any, mask: torch.Tensor) -> None:
        """Put the new row's cache under the old, both padded on the left to one width."""
        if not self.rows:
            self.rows, self.cache, self.mask = [row], cache, mask
            return
        width = max(self.mask.shape[1], mask.shape[1])
        old, new = width - self.mask.shape[1], width - mask.shape[1]
        self.mask = torch.cat([pad(self.mask, (old, 0)), pad(mask, (new, 0))])
        for mine, theirs in zip(self.cache.layers, cache.layers, strict=True):
            mine.keys = _stack(mine.keys, theirs.keys, old, new)
            mine.values = _stack(mine.values, theirs.values, old, new)
        self.rows.append(row)


def _stack(upper: torch.Tensor, lower: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """[B, H, T, D] over [B', H, T', D], after so many columns of padding on the left."""
    return torch.cat([pad(upper, (0, 0, old, 0)), pad(lower, (0, 0, new, 0))])
