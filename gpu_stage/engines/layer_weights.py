"""One decoder layer filled with its weights, and emptied again.

In: a layer of transformers' own class without weights (on the meta device), a checkpoint. Out: the
layer, ready to run. The names in the checkpoint are those of the layer's parameters; linear layers
may be quantised; experts are kept as they are stored (`experts.py`).
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

from fleet.errors import ConfigError
from gpu_stage.engines.checkpoint import Checkpoint
from gpu_stage.engines.dequantise import PLAIN, SUFFIXES, Quantised, weight
from gpu_stage.engines.experts import DOWN, GATE, UP, Projections, StoredExperts

#: Names of stacked expert weights in a checkpoint that transformers 5 wrote without undoing them.
STACKED = ("gate_up_proj", "down_proj")


@dataclass
class LayerWeights:
    """What fills one layer: a few tensors by name, and its experts."""

    state: dict[str, torch.Tensor]
    #: By the path of their module in the layer.
    experts: dict[str, list[Projections]]


@dataclass(frozen=True)
class Loader:
    """Reads layers of one target."""

    checkpoint: Checkpoint
    how: Quantised
    dtype: torch.dtype
    device: torch.device
    #: Parameters that transformers keeps in float32 whatever the model's dtype.
    in_float32: re.Pattern[str] | None

    def read(self, below: str, module: torch.nn.Module) -> LayerWeights:
        """The weights of the module whose tensors are called `below`….

        Raises:
            ConfigError: the checkpoint lacks one.
        """
        found = defaultdict[str, dict[str, torch.Tensor]](dict)
        for name in self.checkpoint.names(below):
            base, _, end = name.rpartition(".")
            found[base][end] = self._own(self.checkpoint.get(below + name))
        state = {name: self._made(below, name, found) for name in module.state_dict(keep_vars=True)}
        paths = [path for path, one in module.named_modules() if isinstance(one, StoredExperts)]
        experts = {path: self._experts(below + path, path, found) for path in paths}
        self.checkpoint.release()
        return LayerWeights(state, experts)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Read from the disk now, into memory that goes when it is dropped."""
        return tensor.clone() if self.device.type == "cpu" else tensor.to(self.device)

    def _made(
        self, below: str, name: str, found: dict[str, dict[str, torch.Tensor]]
    ) -> torch.Tensor:
        base, _, end = name.rpartition(".")
        tensors = found.get(base, {})
        exact = self.in_float32 is not None and self.in_float32.search(below + name)
        dtype = torch.float32 if exact else self.dtype
        try:
            if end == PLAIN and any(suffix in tensors for suffix in SUFFIXES):
                return weight(tensors, self.how, dtype)
            return tensors[end].to(dtype)
        except KeyError as error:
            raise ConfigError(
                f"{self.checkpoint.folder}: has no tensor {below}{base}.{error.args[0]}; its "
                "config.json describes another model, or it is not complete"
            ) from None

    def _experts(
        self, where: str, path: str, found: dict[str, dict[str, torch.Tensor]]
    ) -> list[Projections]:
        if all(name in found.get(path, {}) for name in STACKED):
            return _unstacked(found[path])
        experts: list[Projections] = []
        while all(f"{path}.{len(experts)}.{p}" in found for p in (GATE, UP, DOWN)):
            number = len(experts)
            experts.append({p: found[f"{path}.{number}.{p}"] for p in (GATE, UP, DOWN)})
        if not experts:
            raise ConfigError(f"{self.checkpoint.folder}: has no experts below {where}")
        return experts


def _unstacked(stacked: dict[str, torch.Tensor]) -> list[Projections]:
    both, down = (stacked[name] for name in STACKED)  # [E, 2I, H], [E, H, I]
    return [
        {GATE: {PLAIN: gate}, UP: {PLAIN: up}, DOWN: {PLAIN: one}}
        for (gate, up), one in zip((pair.chunk(2) for pair in both), down, strict=True)
    ]


def without_experts(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Put `StoredExperts` where transformers has stacked ones."""
    for path, one in list(module.named_modules()):
        if getattr(getattr(one, STACKED[0], None), "ndim", 0) == 3:
            parent, _, name = path.rpartition(".")
            act: Any = one.act_fn
            setattr(module.get_submodule(parent), name, StoredExperts(act, dtype))


def fill(module: torch.nn.Module, weights: LayerWeights, how: Quantised) -> None:
    """Give a module its weights, which it shares."""
    module.load_state_dict(weights.state, assign=True)
    for path, experts in weights.experts.items():
        stored = module.get_submodule(path)
        assert isinstance(stored, StoredExperts)
        stored.fill(experts, how)


def empty(module: torch.nn.Module) -> None:
    """Take them from it."""
    module.to("meta")
    for one in module.modules():
        if isinstance(one, StoredExperts):
            one.fill([], Quantised())
