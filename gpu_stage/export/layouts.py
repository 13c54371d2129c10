"""The layouts of a draft that engines load: keys and `config.json` of each.

In: a `Draft` and the layers that it was trained on. Out: tensors by key, and configuration. Pure.

SGLang reads `midlayer.*` and passes over any other key without a word; vLLM reads both spellings
and fails at an unknown key. The same layer number names another layer to each (SGLang adds
1), so it is written only where it is not the default of both.
"""

from typing import Any

import torch
from torch import Tensor

from gpu_stage.draft.config import DraftConfig
from gpu_stage.draft.model import Draft
from gpu_stage.engines.layers import default_layers
from gpu_stage.hidden.index import Layers

Object = dict[str, Any]

#: What an engine takes from its layer ids to name h[i].
SHIFT = {"sglang": 1, "vllm": 0}
EMBEDDING, LAYER = "embed_tokens.weight", "midlayer."


def engine_tensors(draft: Draft) -> dict[str, Tensor]:
    """Weights in bf16, without the embedding: engines use the target's."""
    return {key: tensor for key, tensor in _tensors(draft).items() if key != EMBEDDING}


def engine_config(draft: DraftConfig, layers: Layers, shift: int) -> Object:
    """`config.json` for SGLang and vLLM.

    Args:
        shift: of the engine, see `SHIFT`.
    """
    eagle: Object = {"use_aux_hidden_state": True}
    if layers.aux != default_layers(layers.last).aux:
        eagle["eagle_aux_hidden_state_layer_ids"] = [i - shift for i in layers.aux]
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_llama(draft),
        "draft_vocab_size": draft.draft_vocab_size,
        "norm_before_fc": draft.norm_before_fc,
        "norm_before_residual": draft.norm_before_residual,
        "eagle_config": eagle,
    }


def speculators_tensors(draft: Draft) -> dict[str, Tensor]:
    """Weights in bf16, the layer under `layers.0.`."""
    return {key.replace(LAYER, "layers.0.", 1): one for key, one in _tensors(draft).items()}


def speculators_config(draft: DraftConfig, layers: Layers, target: Object, steps: int) -> Object:
    """`config.json` of speculators 0.9.

    Args:
        target: `name` and `architectures` of the target.
        steps: tokens to speculate.
    """
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "transformer_layer_config": {"model_type": "llama", **_llama(draft)},
        "draft_vocab_size": draft.draft_vocab_size,
        "norm_before_fc": draft.norm_before_fc,
        "norm_before_residual": draft.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(layers.aux),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": steps}],
            "verifier": {
                "name_or_path": target["name"],
                "architectures": target["architectures"],
            },
        },
    }


def _tensors(draft: Draft) -> dict[str, Tensor]:
    return {
        key: (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor)
        .contiguous()
        .cpu()
        for key, tensor in draft.state_dict().items()
    }


def _llama(draft: DraftConfig) -> Object:
    """Llama's fields. Old engines read `rope_theta` and `rope_scaling`, new ones `rope_parameters`:
    both are written."""
    rope = dict(draft.rope)
    theta = rope.pop("rope_theta")
    scaling = None if rope.get("rope_type", "default") == "default" else rope
    return {
        "hidden_size": draft.hidden_size,
        "intermediate_size": draft.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": draft.heads,
        "num_key_value_heads": draft.kv_heads,
        "head_dim": draft.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": draft.norm_epsilon,
        "max_position_embeddings": draft.max_positions,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_parameters": draft.rope,
        "vocab_size": draft.vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
