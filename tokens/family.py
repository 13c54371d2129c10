"""An entry of the registry: what a module of `tokens/families/` defines as `FAMILY`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokens.folder import Folder
from tokens.renderer import Renderer


@dataclass(frozen=True)
class Family:
    """How a model family is recognised and loaded."""

    recognises: Callable[[Folder], bool]
    load: Callable[[Folder], Renderer]
