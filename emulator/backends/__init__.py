"""Where the emulator's text comes from; one module for each kind.

`make` imports only the kind that is asked for, so that the emulator runs without torch
unless the model is wanted.
"""

from __future__ import annotations

from ..completion import Backend
from ..config import Config


class BackendError(Exception):
    """The configured backend cannot be used."""


def make(config: Config) -> Backend:
    """The configured backend, not yet started."""
    settings = config.backend
    if settings.kind == "smollm2":
        from .smollm2 import SmolLM2

        return SmolLM2(settings, config.seed)
    if settings.kind == "recorded":
        from .recorded import Recorded

        return Recorded(settings)
    from .synthetic import Synthetic

    return Synthetic(settings)
