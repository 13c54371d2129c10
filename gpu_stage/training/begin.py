"""A draft before its first update, and the target's head that it learns from.

In: a target's folder, its shards, the settings. Out: a `Draft` whose embedding, final norm and head
are the target's, and whose vocabulary is what the target writes most.
"""

from pathlib import Path

import numpy as np
import torch

from fleet.errors import ConfigError
from gpu_stage.draft.config import config_for
from gpu_stage.draft.model import Draft
from gpu_stage.draft.objective import TargetHead
from gpu_stage.draft.vocabulary import choose_vocabulary
from gpu_stage.engines.checkpoint import Checkpoint
from gpu_stage.engines.final_norm import read_head
from gpu_stage.training.data import Data, read
from gpu_stage.training.settings import TrainFile

COUNTS = "token_counts.npy"


def new_draft(target: Path, counts: torch.Tensor, file: TrainFile) -> tuple[Draft, float]:
    """A draft, and the share of the written tokens that its vocabulary covers.

    Args:
        counts: how often the target wrote each token, as long as its ids go.

    Raises:
        ConfigError: the target cannot be read, or the sizes do not fit.
    """
    sizes = {
        name: getattr(file, name) or None
        for name in ("intermediate_size", "heads", "kv_heads", "head_dim")
    }
    config = config_for(
        target,
        file.draft_vocab_size,
        **sizes,
        norm_before_fc=file.norm_before_fc,
        norm_before_residual=file.norm_before_residual,
    )
    if len(counts) > config.vocab_size:
        raise ConfigError(
            f"{target}: has {config.vocab_size:,} tokens, and the samples have ids up to "
            f"{len(counts) - 1:,}: they are another target's"
        )
    padded = torch.nn.functional.pad(counts, (0, config.vocab_size - len(counts)))
    chosen = choose_vocabulary(padded, config.draft_vocab_size)
    torch.manual_seed(file.seed)
    draft = Draft(config)
    draft.d2t.copy_(chosen.d2t)
    draft.t2d.copy_(chosen.t2d)
    head = read_head(target)
    with Checkpoint(target) as checkpoint, torch.no_grad():
        draft.embed_tokens.weight.copy_(checkpoint.get("embed_tokens.weight"))
        draft.norm.weight.copy_(head.norm.weight)
        draft.lm_head.weight.copy_(head.weight[draft.vocabulary])
    return draft, chosen.coverage


def target_head(target: Path, draft: Draft) -> TargetHead:
    """Of the draft's device; float32 on a CPU, which has no fast bf16."""
    device = draft.d2t.device
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    head = read_head(target)
    rows = head.weight.to(device, dtype)[draft.vocabulary]
    return TargetHead(head.norm.weight.to(device, dtype), head.norm.epsilon, rows)


def token_counts(source: Path, data: Data) -> torch.Tensor:
    """How often the target wrote each token: a set's own counts, or those of the samples."""
    path = source / COUNTS
    if path.exists():
        return torch.from_numpy(np.load(path))
    counts = torch.zeros(0, dtype=torch.int64)
    for place in data.train:
        example = read(place)
        some = torch.bincount(example.ids[example.mask])
        size = max(len(some), len(counts))
        counts = _padded(counts, size) + _padded(some, size)
    return counts


def _padded(counts: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(counts, (0, size - len(counts)))
