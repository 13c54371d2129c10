"""The EAGLE-3 draft model (arXiv 2503.01840, section 3), as SGLang and vLLM run it.

    x = fc(aux)                                  at step 0; the layer's own output at later steps
    e = embedding of the next token
    a = attention over [input_layernorm(e); hidden_norm(x)]
    y = x + a;   out = y + mlp(post_attention_layernorm(y))
    logits = lm_head(norm(out))                  over the draft's vocabulary

Names of parameters are those of the checkpoints that both engines load. Weights are float32, and
what is computed is the caller's autocast.

    T   slots of a pack    H   hidden size    V   vocabulary    D   draft vocabulary
    n   heads    m   heads of keys and values    d   size of a head
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from gpu_stage.draft.attention import unrolled
from gpu_stage.draft.config import DraftConfig

#: q, k, v of the slots at hand, [n, T, d] each, to what each slot reads, [n, T, d].
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class Seen:
    """Keys and values of the steps so far, [n, T, d] each."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Slots:
    """Where the slots of a pack stand."""

    #: Position of each slot in its sample, [T] int64.
    positions: Tensor
    #: Where samples begin, and T.
    bounds: Sequence[int]


class Attention(nn.Module):
    """Reads twice the hidden size: the embedding beside the hidden state."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self._shape = config.heads, config.kv_heads, config.head_dim
        n, m, d = self._shape
        self.q_proj = nn.Linear(2 * config.hidden_size, n * d, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, m * d, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, m * d, bias=False)
        self.o_proj = nn.Linear(n * d, config.hidden_size, bias=False)

    def forward(self, both: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """[T, 2H] -> [T, H]."""
        n, m, d = self._shape
        q = self.q_proj(both).view(-1, n, d).transpose(0, 1)  # [n, T, d]
        k = self.k_proj(both).view(-1, m, d).transpose(0, 1)  # [m, T, d]
        v = self.v_proj(both).view(-1, m, d).transpose(0, 1)
        q, k = apply_rotary_pos_emb(q, k, *rope, unsqueeze_dim=0)
        k, v = (one.to(v.dtype).repeat_interleave(n // m, dim=0) for one in (k, v))
        out = attend(q.to(v.dtype), k, v)  # [n, T, d]
        return self.o_proj(out.transpose(0, 1).reshape(-1, n * d))


class Layer(nn.Module):
    """The draft's one decoder layer."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        norm = config.hidden_size, config.norm_epsilon
        self._norm_before_residual = config.norm_before_residual
        self.input_layernorm = LlamaRMSNorm(*norm)
        self.hidden_norm = LlamaRMSNorm(*norm)
        self.post_attention_layernorm = LlamaRMSNorm(*norm)
        self.self_attn = Attention(config)
        self.mlp = LlamaMLP(config.llama())

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        rope: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> Tensor:
        """[T, H] of both -> [T, H]."""
        normed = self.hidden_norm(hidden)
        residual = normed if self._norm_before_residual else hidden
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)  # [T, 2H]
        out = residual + self.self_attn(both, rope, attend)
        return out + self.mlp(self.post_attention_layernorm(out))


class Draft(nn.Module):
    """An EAGLE-3 draft; `embed_tokens` is the target's and frozen."""

    d2t: Tensor  # [D] int64: target id = draft id + d2t[draft id]
    t2d: Tensor  # [V] bool: whether a target id is in the draft's vocabulary

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        h = config.hidden_size
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, h).requires_grad_(False)
        self.input_norm = (
            LlamaRMSNorm(3 * h, config.norm_epsilon) if config.norm_before_fc else None
        )
        self.fc = nn.Linear(3 * h, h, bias=False)
        self.midlayer = Layer(config)
        self.norm = LlamaRMSNorm(h, config.norm_epsilon)
        self.lm_head = nn.Linear(h, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self._rotary = LlamaRotaryEmbedding(config.llama())

    @property
    def vocabulary(self) -> Tensor:
        """Target id of each draft id, [D] int64."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def combine(self, aux: Tensor) -> Tensor:
        """x of step 0: [T, 3H], low to high, -> [T, H]."""
        return self.fc(aux if self.input_norm is None else self.input_norm(aux))

    def step(self, hidden: Tensor, tokens: Tensor, slots: Slots, seen: Seen) -> Tensor:
        """One step for all slots.

        Args:
            hidden: x of each slot, [T, H].
            tokens: the next token of each, [T] int64.
            slots: at step 0; the step's number, which `seen` knows, is added to positions.

        Returns:
            The layer's output before the final norm, [T, H]: the next step's `hidden`.
        """
        positions = slots.positions + len(seen.keys)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            seen.keys.append(k)
            seen.values.append(v)
            return unrolled(q, seen.keys, seen.values, slots.bounds)

        return self.run(hidden, tokens, positions, attend)

    def run(self, hidden: Tensor, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The layer over [embedding; hidden]: [T, H] -> [T, H], before the final norm."""
        embedded = self.embed_tokens(tokens).to(hidden.dtype)
        cos, sin = self._rotary(embedded[None], positions[None])  # [1, T, d] each
        return self.midlayer(embedded, hidden, (cos[0], sin[0]), attend)

    def logits(self, out: Tensor) -> Tensor:
        """[T, H] -> [T, D]."""
        return self.lm_head(self.norm(out))
