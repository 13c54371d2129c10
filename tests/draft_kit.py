"""Small drafts and batches for tests."""

import torch

from gpu_stage.draft.batch import Batch, Example, make_batch
from gpu_stage.draft.config import DraftConfig
from gpu_stage.draft.model import Draft
from gpu_stage.draft.objective import TargetHead
from gpu_stage.draft.vocabulary import choose_vocabulary

HIDDEN, VOCABULARY, DRAFT = 16, 40, 24
CONFIG = DraftConfig(
    hidden_size=HIDDEN,
    intermediate_size=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab_size=VOCABULARY,
    draft_vocab_size=DRAFT,
    norm_epsilon=1e-5,
    rope={"rope_type": "default", "rope_theta": 10000.0},
    max_positions=128,
)


def make_draft(config: DraftConfig = CONFIG) -> Draft:
    """Random weights."""
    torch.manual_seed(5)
    draft = Draft(config)
    chosen = choose_vocabulary(torch.arange(config.vocab_size).flip(0), config.draft_vocab_size)
    draft.d2t.copy_(chosen.d2t)
    draft.t2d.copy_(chosen.t2d)
    return draft


def make_examples(*shapes: tuple[int, int]) -> list[Example]:
    """Samples of (prompt tokens, completion tokens)."""
    torch.manual_seed(11)
    return [
        Example(
            torch.randint(0, VOCABULARY, (prompt + written,)),
            torch.arange(prompt + written) >= prompt,
            torch.randn(prompt + written, 4, HIDDEN),
        )
        for prompt, written in shapes
    ]


def batch_of(*shapes: tuple[int, int]) -> Batch:
    return make_batch(make_examples(*shapes))


def make_head() -> TargetHead:
    torch.manual_seed(3)
    return TargetHead(torch.rand(HIDDEN) + 0.5, 1e-5, torch.randn(DRAFT, HIDDEN))
