"""`train.toml`: how a draft is shaped and trained, as a frozen struct.

In: a TOML file, or none. Out: a `TrainFile`, checked whole. A copy lies beside the weights, and a
training that is gone on with must have the same.
"""

from pathlib import Path

import msgspec

from fleet.errors import ConfigError
from fleet.toml_file import read_toml


class TrainFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a training file; the defaults are those of the EAGLE-3 paper's code."""

    #: Orders the samples, and gives the first weights.
    seed: int = 0
    epochs: int = 10
    #: K of the training-time test, and by how much less each step counts than the one before.
    steps: int = 7
    step_decay: float = 0.8
    learning_rate: float = 1e-4
    #: Share of all updates in which the rate rises; then it falls as a cosine to 0.
    warmup: float = 0.015
    #: Largest norm of the gradients; larger ones are scaled to it. 0: off.
    clip_norm: float = 0.5
    #: Tokens of a pack, which goes through the draft at once, and packs of an update.
    pack_tokens: int = 4096
    packs: int = 1
    #: Longer samples lose their end. 0: off.
    max_length_tokens: int = 0
    #: Share of the prompts that a run's training never sees; a set has its own.
    heldout_share: float = 0.05
    #: Updates from one validation, and checkpoint, to the next; 0: at the end of each epoch.
    validate_every: int = 0
    #: Newest checkpoints that are kept, beside the best.
    keep: int = 2
    #: Validations without a better one after which training ends; 0: off.
    patience: int = 0

    draft_vocab_size: int = 32_000
    #: Sizes of the draft; 0: the target's.
    intermediate_size: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    norm_before_fc: bool = False
    norm_before_residual: bool = False


def load(path: Path) -> TrainFile:
    """
    Raises:
        ConfigError: the file is missing, is not TOML, or a key is wrong.
    """
    file = read_toml(path, TrainFile, "leave `-c` out for the defaults")
    for name in ("epochs", "steps", "pack_tokens", "packs", "keep", "draft_vocab_size"):
        if getattr(file, name) < 1:
            raise ConfigError(f"{path}: {name} = {getattr(file, name)}: must be 1 or more")
    for name in ("seed", "clip_norm", "max_length_tokens", "validate_every", "patience"):
        if getattr(file, name) < 0:
            raise ConfigError(f"{path}: {name} = {getattr(file, name)}: must be 0 or more")
    for name in ("warmup", "heldout_share"):
        if not 0 <= getattr(file, name) < 1:
            raise ConfigError(f"{path}: {name} = {getattr(file, name)}: must be in [0, 1)")
    if not (file.learning_rate > 0 and 0 < file.step_decay <= 1):
        raise ConfigError(
            f"{path}: learning_rate = {file.learning_rate}, step_decay = {file.step_decay}: above "
            "0; above 0, at most 1"
        )
    return file
