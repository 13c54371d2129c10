"""The target as it verifies: logits and aux states of the tokens behind what it has seen.

T   new tokens    H   hidden size    V   vocabulary
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from fleet.errors import ConfigError
from gpu_stage.hidden.index import Layers


class Verifier:
    """A target with a cache that can be cut.

    Raises:
        ConfigError: an aux layer is the last one, which transformers gives behind the final norm.
    """

    def __init__(self, folder: Path, layers: Layers, device: torch.device) -> None:
        if layers.last in layers.aux:
            raise ConfigError(
                f"{folder}: decoding needs aux layers below the last, {layers.last}; the states "
                f"are of {layers.aux}"
            )
        # float32 on a CPU: one token at a time or five, the sums round alike enough.
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self._aux = layers.aux
        self.device = device
        self.begin()

    def begin(self) -> None:
        """A new sequence."""
        self._cache = DynamicCache()
        self.seen = 0

    @torch.no_grad()
    def read(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits [T, V] float32 and aux states [T, 3H] of the next tokens."""
        ids = torch.tensor([tokens], device=self.device)
        out = self._model(ids, cache=self._cache, use_cache=True, output_hidden_states=True)
        self.seen += len(tokens)
        aux = torch.cat([out.hidden_states[i][0] for i in self._aux], dim=-1)
        return out.logits[0].float(), aux

    def cut(self, tokens: int) -> None:
        """Forget what lies behind the first `tokens`."""
        if tokens < self.seen:
            self._cache.crop(tokens - self.seen)
            self.seen = tokens
