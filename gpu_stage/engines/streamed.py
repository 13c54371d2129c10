"""A target far larger than the memory: one decoder layer at a time, a chunk of samples through it.

In: a model folder. Out: an `Engine`. The layers are transformers' own classes, made without
weights; each is filled from the disk when the chunk comes to it, while the next is being read by a
thread, and emptied behind it. So two layers are in memory at most, weights are read once a chunk,
and the numbers are those of `resident`.

    T   tokens of a pack    H   hidden size
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from gpu_stage.engines.activations import HostMemory
from gpu_stage.engines.attention import PACKED
from gpu_stage.engines.checkpoint import Checkpoint
from gpu_stage.engines.dequantise import Quantised, quantised
from gpu_stage.engines.layer_weights import Loader, empty, fill, without_experts
from gpu_stage.engines.layers import Layers, default_layers
from gpu_stage.engines.packing import Pack
from gpu_stage.engines.states import Engine, States
from gpu_stage.engines.target_config import read_config


class StreamedEngine(Engine):
    """A target that stays on the disk."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype = torch.bfloat16,
        layers: Layers | None = None,
        device: str = "cpu",
        memory: HostMemory | None = None,
    ) -> None:
        """
        Args:
            layers: which states; None: the default of the engines that run the draft.
            device: where it computes.
            memory: where the chunk's states lie meanwhile.

        Raises:
            ConfigError: the folder's weights cannot be read, are quantised in a way that is not
                known, or its model has layers that packing does not know.
        """
        config = read_config(folder)
        self.layers = layers or default_layers(config.num_hidden_layers)
        self.hidden_size, self.vocabulary = config.hidden_size, config.vocab_size
        self.dtype, self._device = dtype, torch.device(device)
        self._memory = memory or HostMemory()
        self._how = _storage(folder)
        self._model = _skeleton(config, dtype)
        self._body = self._model.get_decoder()
        self._rotary = type(self._body.rotary_emb)(config).to(self._device)
        self._load = Loader(
            Checkpoint(folder), self._how, dtype, self._device, _in_float32(self._model)
        )
        for name in ("embed_tokens.", "norm."):
            module = self._body.get_submodule(name[:-1])
            fill(module, self._load.read(name, module), self._how)
        self._head = self._own_head()

    def _own_head(self) -> torch.Tensor:  # [V, H]
        checkpoint = self._load.checkpoint
        if checkpoint.tied:
            return self._body.embed_tokens.weight
        return checkpoint.head().to(self._device, self.dtype, copy=True)

    @torch.inference_mode()
    def states(self, packs: Sequence[Pack]) -> Iterator[States]:
        ends = [0]
        for pack in packs:
            ends.append(ends[-1] + len(pack.ids))
        pinned = self._device.type == "cuda"
        chunk = self._memory.states(ends[-1], self.hidden_size, self.dtype, pinned=pinned)
        parts = [chunk[start:end] for start, end in pairwise(ends)]
        for part, pack in zip(parts, packs, strict=True):
            part[:, -1] = self._body.embed_tokens(pack.ids.to(self._device))
        self._keep(0, chunk)
        for index, layer in self._filled():
            for part, pack in zip(parts, packs, strict=True):
                part[:, -1] = self._through(layer, part[:, -1].to(self._device), pack)
            self._keep(index + 1, chunk)
        yield from map(States, parts)

    def _keep(self, index: int, chunk: torch.Tensor) -> None:
        """Copy h[index] from the running state, where it is an aux layer's."""
        if index in self.layers.aux:
            chunk[:, self.layers.aux.index(index)] = chunk[:, -1]

    def _filled(self) -> Iterator[tuple[int, torch.nn.Module]]:
        """The layers that are wanted, one after the other, each filled while it is used."""
        layers = list(self._body.layers)[: self.layers.last]
        with ThreadPoolExecutor(1, thread_name_prefix="weights") as reader:
            coming = reader.submit(self._load.read, "layers.0.", layers[0])
            for index, layer in enumerate(layers):
                weights = coming.result()
                if index + 1 < len(layers):
                    after = layers[index + 1]
                    coming = reader.submit(self._load.read, f"layers.{index + 1}.", after)
                fill(layer, weights, self._how)
                del weights
                yield index, layer
                empty(layer)

    @torch.inference_mode()
    def layer_seconds(self, index: int, pack: Pack) -> float:
        """How long one layer computes over a pack: the second time, and without reading it."""
        layer = self._body.layers[index]
        fill(layer, self._load.read(f"layers.{index}.", layer), self._how)
        states = self._body.embed_tokens(pack.ids.to(self._device))
        self._through(layer, states, pack).sum().item()
        began = time.perf_counter()
        self._through(layer, states, pack).sum().item()  # `item` waits for a GPU
        empty(layer)
        return time.perf_counter() - began

    def _through(self, layer: torch.nn.Module, states: torch.Tensor, pack: Pack) -> torch.Tensor:
        positions = pack.positions[None].to(self._device)  # [1, T]
        output = layer(
            states[None],  # [1, T, H]
            attention_mask=None,
            position_ids=positions,
            position_embeddings=self._rotary(states[None], positions),
            use_cache=False,
            boundaries=pack.boundaries,
        )
        made: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return made[0]  # [T, H]

    @torch.inference_mode()
    def logits(self, last: torch.Tensor) -> torch.Tensor:
        normed = self._body.norm(last.to(self._device))
        return linear(normed, self._head).float()


def _skeleton(config: Any, dtype: torch.dtype) -> Any:
    """The model without weights and without room for experts."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=PACKED)
    without_experts(model, dtype)
    return model.eval()


def _storage(folder: Path) -> Quantised:
    config = json.loads((folder / "config.json").read_bytes())
    text = config.get("text_config") or {}
    return quantised(config.get("quantization_config") or text.get("quantization_config"))


def _in_float32(model: Any) -> re.Pattern[str] | None:
    """What transformers keeps in float32 when it loads this class, by the same pattern."""
    names = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    return (
        re.compile("|".join(rf"(?:^|\.){re.escape(n)}(?:$|\.)" for n in names)) if names else None
    )
