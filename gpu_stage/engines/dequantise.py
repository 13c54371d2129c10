"""Weights of a quantised checkpoint as numbers again, one matrix at a time.

Two forms are known: compressed-tensors `pack-quantized` (INT4, symmetric, groups along a row), the
form Kimi-K2.5 ships its experts in, and the fp8 of DeepSeek-V3 (e4m3, blocks of a matrix). In:
the tensors of one linear layer by their names. Out: its weight in the wanted dtype.

    N   rows (outputs)    K   columns (inputs)    G   group or block size
"""

from dataclasses import dataclass
from typing import Any

import torch

from fleet.errors import ConfigError

#: What the names of a linear layer's tensors end with, in either form.
PLAIN, PACKED, SCALE, SHAPE, INVERSE = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_scale_inv",
)
SUFFIXES = (PACKED, SCALE, SHAPE, INVERSE)
#: Four bits a value; eight of them in an int32, the first in the lowest bits.
BITS, IN_WORD = 4, 8


@dataclass(frozen=True)
class Quantised:
    """How a checkpoint's weights are stored, from its `quantization_config`."""

    #: Rows and columns of a block of fp8.
    block: tuple[int, int] = (128, 128)


def quantised(config: dict[str, Any] | None) -> Quantised:
    """What a `quantization_config` says; None: weights are plain.

    Raises:
        ConfigError: it is a form that is not known here.
    """
    config = config or {"quant_method": "none"}
    match config.get("quant_method"):
        case "none":
            return Quantised()
        case "fp8":
            rows, columns = config.get("weight_block_size") or (0, 0)
            if rows and columns:
                return Quantised((rows, columns))
        case "compressed-tensors":
            groups = config.get("config_groups") or {}
            if config.get("format") == "pack-quantized" and all(map(_int4, groups.values())):
                return Quantised()
    raise ConfigError(
        f"quantization_config {config}: known are compressed-tensors pack-quantized int4 (symmetric"
        ", by group) and fp8 with weight_block_size; use a checkpoint of one of these, or bf16"
    )


def _int4(group: dict[str, Any]) -> bool:
    weights = group.get("weights") or {}
    wanted = {"num_bits": BITS, "type": "int", "symmetric": True, "strategy": "group"}
    return all(weights.get(key) == value for key, value in wanted.items())


def weight(
    tensors: dict[str, torch.Tensor], how: Quantised, dtype: torch.dtype
) -> torch.Tensor:  # [N, K]
    """The weight of a linear layer.

    Args:
        tensors: by the end of their names: `weight`; `weight_packed`, `weight_scale`,
            `weight_shape`; or `weight`, `weight_scale_inv`.
    """
    if PACKED in tensors:
        return _from_int4(tensors[PACKED], tensors[SCALE], tensors[SHAPE]).to(dtype)
    if INVERSE in tensors:
        return _from_fp8(tensors[PLAIN], tensors[INVERSE], how.block).to(dtype)
    return tensors[PLAIN].to(dtype)


def _from_int4(
    packed: torch.Tensor,  # [N, ceil(K/8)] int32
    scale: torch.Tensor,  # [N, K/G]
    shape: torch.Tensor,  # [2]: N, K
) -> torch.Tensor:
    """Value minus 8, times the scale of its group; rounded as the scale's dtype rounds."""
    rows, columns = shape.tolist()
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32, device=packed.device)
    nibbles = (packed[..., None] >> shifts) & 0xF  # [N, K/8, 8]
    values = nibbles.flatten(1)[:, :columns] - (1 << (BITS - 1))  # [N, K]
    grouped = values.view(rows, scale.shape[1], -1).to(scale.dtype)  # [N, K/G, G]
    return (grouped * scale[..., None]).view(rows, columns)


def _from_fp8(
    values: torch.Tensor,  # [N, K] float8_e4m3fn
    scale: torch.Tensor,  # [ceil(N/G), ceil(K/G)] float32
    block: tuple[int, int],
) -> torch.Tensor:
    rows, columns = values.shape
    wide = scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return values.to(torch.float32) * wide
