"""SmolLM2 as the target that scores segmentations: two passes a round, on the CPU.

The first pass reads prompt and completion, and its keys and values are kept. The second has all
edits side by side behind them: each branch sees the text up to its place, its own new tokens,
and a few of the tokens that follow. What comes later hardly depends on how a word was cut.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DynamicCache, LlamaForCausalLM

from tokens.edit_features import Evidence
from tokens.segmentation import Edit

#: Tokens after an edit that count towards its gain: 2 are too few, 8 as good as 32.
BEHIND = 8


@dataclass(frozen=True)
class _Branch:
    """New tokens and what follows, for one edit."""

    ids: Sequence[int]
    start: int


class Target:
    """The model."""

    def __init__(self, folder: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def reader(self, prompt: Sequence[int], ending: Sequence[int]) -> "Reader":
        """`ending`: the end token, if the completion has one."""
        return Reader(self.model, list(prompt), list(ending))


class Reader:
    """A `tokens.recover.Scorer` of one completion; remembers the ids that it read last."""

    def __init__(self, model: LlamaForCausalLM, prompt: list[int], ending: list[int]) -> None:
        self._model, self._prompt, self._ending = model, prompt, ending

    @torch.inference_mode()
    def evidence(self, ids: Sequence[int], edits: Sequence[Edit]) -> Evidence:
        self._ids = [*ids, *self._ending]
        self._cache = DynamicCache()
        tokens = torch.tensor([self._prompt + self._ids])
        hidden = self._model.model(tokens, past_key_values=self._cache).last_hidden_state[0]
        self._log_p = self._log_probs(hidden[len(self._prompt) - 1 :])  # [T + 1, V]
        places = torch.tensor([edit.start for edit in edits], dtype=torch.long)
        tokens = torch.tensor([edit.new[0] for edit in edits], dtype=torch.long)
        written = self._log_p[torch.arange(len(self._ids)), torch.tensor(self._ids)]
        self._written: list[float] = written.tolist()
        return Evidence(self._written[: len(ids)], self._log_p[places, tokens].tolist())

    @torch.inference_mode()
    def gains(self, ids: Sequence[int], edits: Sequence[Edit]) -> Sequence[float]:
        """Of the ids that `evidence` read last."""
        branches = [
            _Branch([*edit.new, *self._ids[edit.end : edit.end + BEHIND]], edit.start)
            for edit in edits
        ]
        scores = self._scores(branches) if branches else []
        return [
            score - sum(self._written[edit.start : edit.end + BEHIND])
            for edit, score in zip(edits, scores, strict=True)
        ]

    def _log_probs(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self._model.lm_head(hidden).float(), dim=-1)

    def _scores(self, branches: Sequence[_Branch]) -> Iterator[float]:
        """Log-probability of each branch, all in one pass."""
        owner = torch.tensor([at for at, branch in enumerate(branches) for _ in branch.ids])
        start = torch.tensor([branch.start for branch in branches])[owner] + len(self._prompt)
        depth = torch.tensor([depth for branch in branches for depth in range(len(branch.ids))])
        tokens = torch.tensor([token for branch in branches for token in branch.ids])
        hidden = self._model.model(
            tokens[None],
            past_key_values=self._cache,
            attention_mask=self._mask(owner, start, depth),
            position_ids=(start + depth)[None],
        ).last_hidden_state[0]
        self._cache.crop(-len(tokens))
        # The last token of a branch predicts nothing; its first is predicted by the text.
        later = self._log_probs(hidden)[:-1].gather(1, tokens[1:, None])[:, 0]
        first = self._log_p[[branch.start for branch in branches], tokens[depth == 0]]
        values = torch.cat([torch.zeros(1), later])
        values[depth == 0] = first
        sums = torch.zeros(len(branches)).index_add_(0, owner, values)
        yield from sums.tolist()

    def _mask(self, owner: torch.Tensor, start: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        """[1, 1, branch tokens, text + branch tokens], 0 where one sees the other."""
        length = len(self._prompt) + len(self._ids)
        text = torch.arange(length)[None] < start[:, None]
        own = (owner[:, None] == owner[None]) & (depth[None] <= depth[:, None])
        hidden = ~torch.cat([text, own], dim=1)[None, None]
        mask = torch.zeros(hidden.shape, dtype=self._model.dtype)
        return mask.masked_fill_(hidden, torch.finfo(self._model.dtype).min)
