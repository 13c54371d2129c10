"""The whole target in memory, as transformers loads it.

In: a model folder. Out: an `Engine`. The decoder layers are transformers' own; hooks take the
residual stream where it leaves the wanted layers, and the head is not run.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from gpu_stage.engines.attention import PACKED
from gpu_stage.engines.layers import Layers, default_layers
from gpu_stage.engines.packing import Pack
from gpu_stage.engines.states import Engine, States
from gpu_stage.engines.target_config import read_config


class ResidentEngine(Engine):
    """A target that fits into memory."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype = torch.bfloat16,
        layers: Layers | None = None,
        device_map: str | None = None,
    ) -> None:
        """
        Args:
            layers: which states; None: the default of the engines that run the draft.
            device_map: where the layers go, as in transformers (`auto`); None: the CPU.

        Raises:
            ConfigError: the folder's model has layers that packing does not know.
        """
        config = read_config(folder)
        self.layers = layers or default_layers(config.num_hidden_layers)
        self.hidden_size, self.vocabulary = config.hidden_size, config.vocab_size
        self.dtype = dtype
        self._model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map=device_map,
            attn_implementation=PACKED,
            # On the CPU the plain loop over experts: no kernel is faster there, and it is what
            # `streamed` equals bit for bit.
            experts_implementation=None if device_map else "eager",
        ).eval()
        self._body = self._model.get_decoder()
        self._seen: dict[int, torch.Tensor] = {}
        for index in {*self.layers.aux, self.layers.last}:
            self._watch(index)

    def _watch(self, index: int) -> None:
        """Take h[index] whenever it is made."""
        source = self._body.layers[index - 1] if index else self._body.embed_tokens

        def keep(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            self._seen[index] = output[0] if isinstance(output, tuple) else output

        source.register_forward_hook(keep)

    @torch.inference_mode()
    def states(self, packs: Sequence[Pack]) -> Iterator[States]:
        device = self._body.embed_tokens.weight.device
        wanted = (*self.layers.aux, self.layers.last)
        for pack in packs:
            self._body(
                input_ids=pack.ids[None].to(device),  # [1, T]
                position_ids=pack.positions[None].to(device),
                boundaries=pack.boundaries,
                use_cache=False,
            )
            seen = {index: states[0].cpu() for index, states in self._seen.items()}  # [T, H]
            self._seen.clear()
            yield States(torch.stack([seen[index] for index in wanted], dim=1))

    @torch.inference_mode()
    def logits(self, last: torch.Tensor) -> torch.Tensor:
        norm, head = self._body.norm, self._model.get_output_embeddings()
        return head(norm(last.to(head.weight.device))).float()
