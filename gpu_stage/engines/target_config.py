"""The configuration of a target's language model, as transformers reads it."""

from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.utils import logging

from fleet.errors import ConfigError

# A bar of our own says how far a stage is.
logging.disable_progress_bar()


def read_config(folder: Path) -> Any:
    """
    Raises:
        ConfigError: transformers cannot read it, or its model has layers that look through a
            window, which packing does not know.
    """
    try:
        config = AutoConfig.from_pretrained(folder).get_text_config()
    except (OSError, ValueError, StrictDataclassError) as error:
        raise ConfigError(f"{folder}/config.json: transformers cannot read it: {error}") from error
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds or getattr(config, "use_sliding_window", False):
        raise ConfigError(
            f"{folder}: has layers of {', '.join(sorted(kinds)) or 'sliding-window attention'}, "
            "which are not packed yet; every layer must see all that stands before it"
        )
    return config
