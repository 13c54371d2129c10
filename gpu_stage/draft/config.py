"""The shape of a draft, and what it takes over from its target.

In: a target's configuration. Out: a `DraftConfig`, saved beside the weights as JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from fleet.errors import ConfigError
from gpu_stage.engines.target_config import read_config

#: Of a head where the target's attention has none of its own kind to take over (MLA).
MLA_HEAD_DIM, MLA_KV_HEADS = 128, 8


@dataclass(frozen=True)
class DraftConfig:
    """One Llama-shaped decoder layer over [embedding; hidden]."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    #: The target's vocabulary, and the draft's.
    vocab_size: int
    draft_vocab_size: int
    norm_epsilon: float
    #: As transformers writes it: `rope_type`, `rope_theta`, and what yarn needs.
    rope: dict[str, Any]
    max_positions: int
    #: An RMSNorm over the three aux states before `fc` (`input_norm`).
    norm_before_fc: bool = False
    #: The residual is the normed hidden state, not the hidden state itself.
    norm_before_residual: bool = False

    def llama(self) -> LlamaConfig:
        """The same in transformers' words."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            rms_norm_eps=self.norm_epsilon,
            max_position_embeddings=self.max_positions,
            rope_parameters=dict(self.rope),
            tie_word_embeddings=False,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def config_for(target: Path, draft_vocab_size: int, **sizes: Any) -> DraftConfig:
    """A draft for a target: its width, its positions, and its heads where they are of Llama's kind.

    Args:
        sizes: fields of `DraftConfig` that are to be other than the target's; None leaves one.

    Raises:
        ConfigError: the target cannot be read, or the sizes do not fit together.
    """
    config = read_config(target)
    own = {name: value for name, value in sizes.items() if value is not None}
    made = DraftConfig(
        **{
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            **_heads(config),
            "vocab_size": config.vocab_size,
            "draft_vocab_size": min(draft_vocab_size, config.vocab_size),
            "norm_epsilon": config.rms_norm_eps,
            "rope": dict(config.rope_parameters),
            "max_positions": config.max_position_embeddings,
        }
        | own
    )
    if made.heads % made.kv_heads or made.head_dim % 2 or made.draft_vocab_size < 1:
        raise ConfigError(
            f"a draft of {made.heads} heads of {made.head_dim}, {made.kv_heads} of them for keys "
            f"and values, with {made.draft_vocab_size} tokens: heads must be a multiple of those "
            "for keys, their size even, and a token there"
        )
    return made


def _heads(config: Any) -> dict[str, int]:
    if getattr(config, "kv_lora_rank", None):
        return {
            "heads": max(1, config.hidden_size // MLA_HEAD_DIM),
            "kv_heads": min(MLA_KV_HEADS, max(1, config.hidden_size // MLA_HEAD_DIM)),
            "head_dim": MLA_HEAD_DIM,
        }
    heads = config.num_attention_heads
    return {
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
    }
