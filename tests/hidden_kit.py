"""Small targets with random weights, of the classes that transformers has, and quantised copies."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import samples_kit
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from gpu_stage.engines.packing import Pack, make_pack

VOCABULARY, HIDDEN, LAYERS = 300, 64, 8
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MIXTURE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
}
#: Kimi-K2 is of DeepSeek-V3's class.
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**COMMON, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**COMMON, head_dim=16),
    "qwen3_moe": Qwen3MoeConfig(**COMMON, **MIXTURE, head_dim=16, num_experts=8),
    "deepseek_v3": DeepseekV3Config(
        **{**COMMON, "num_key_value_heads": 4},
        **MIXTURE,
        n_routed_experts=8,
        n_shared_experts=1,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_group=1,
        topk_group=1,
        rope_scaling=YARN,
    ),
}
#: What Kimi-K2.5's config.json says of its experts.
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
            },
        }
    },
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 32]}


def write_target(folder: Path, kind: str, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A target of random weights, as transformers saves it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind], dtype=dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.05 + ("norm" in name))
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    model.save_pretrained(folder)
    return folder


def write_quantised(folder: Path, plain: Path, config: dict[str, Any]) -> Path:
    """A copy of a target whose experts (linear layers, where it has none) are quantised; the
    plain one gets the weights that the quantised ones stand for."""
    tensors = load_file(plain / "model.safetensors")
    chosen = [name for name in tensors if name.endswith("_proj.weight") and "layers" in name]
    experts = [name for name in chosen if ".experts." in name]
    stored = dict(tensors)
    for name in experts or chosen:
        small, plain_weight = (_int4 if config is INT4 else _fp8)(stored.pop(name))
        stored |= {name.removesuffix("weight") + end: tensor for end, tensor in small.items()}
        tensors[name] = plain_weight
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    folder.mkdir()
    shutil.copy(plain / "config.json", folder)
    read = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(read | {"quantization_config": config}))
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder


def _int4(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    groups = weight.unflatten(1, (-1, 32))
    scale = (groups.abs().amax(-1) / 7).to(torch.bfloat16)
    values = (groups / scale[..., None]).round().clamp(-8, 7).to(torch.int8)
    plain = (values.to(torch.bfloat16) * scale[..., None]).flatten(1)
    small = {
        "weight_packed": pack_to_int32(values.flatten(1), 4),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }
    return small, plain


def _fp8(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    rows, columns = FP8["weight_block_size"]
    blocks = weight.float().unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
    scale = blocks.abs().amax((1, 3)) / 448  # [N/16, K/32]
    values = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    plain = (values.float() * scale[:, None, :, None]).flatten(2).flatten(0, 1)
    small = {"weight": values.flatten(2).flatten(0, 1), "weight_scale_inv": scale}
    return small, plain.to(torch.bfloat16)


def make_packs(*lengths: Sequence[int]) -> list[Pack]:
    """Packs of random samples of these lengths."""
    torch.manual_seed(1)
    return [make_pack([make_ids(length) for length in some]) for some in lengths]


def make_ids(length: int) -> list[int]:
    ids: list[int] = torch.randint(0, VOCABULARY, (length,)).tolist()
    return ids


def write_run(folder: Path, lengths: Sequence[int], rows_a_part: int = 100) -> Path:
    """A run whose samples have these lengths (4 or more), half of each a prompt."""
    torch.manual_seed(2)
    rows = [
        samples_kit.Row(
            text=f"question {number}",
            prompt_ids=make_ids(length // 2),
            completion_ids=make_ids(length - length // 2),
        )
        for number, length in enumerate(lengths)
    ]
    return samples_kit.write_run(folder, {"B1": rows}, rows_a_part)
