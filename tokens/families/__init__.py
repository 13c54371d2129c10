"""The registry: every module of this folder is a model family.

A module defines `FAMILY`; nothing else has to be edited to add one. `plain` is asked last: it
takes any Hugging Face tokenizer that has a chat template.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from tokens.errors import FolderError
from tokens.family import Family
from tokens.folder import Folder
from tokens.renderer import Renderer

FALLBACK = "plain"
_FAMILIES: dict[str, Family] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").FAMILY
    for module in pkgutil.iter_modules(__path__)
}


def names() -> list[str]:
    """The families there are."""
    return sorted(_FAMILIES)


def load(folder: Path | str, family: str | None = None) -> Renderer:
    """The renderer of a local model folder; its family is recognised unless named.

    Raises:
        FolderError: no known family can load the folder.
    """
    place = Folder(Path(folder))
    if not place.path.is_dir():
        raise FolderError(f"{place.path} is no folder: name one with a model's tokenizer files")
    chosen = _named(family) if family else _recognised(place)
    return chosen.load(place)


def _named(family: str) -> Family:
    if family not in _FAMILIES:
        raise FolderError(f"no family {family!r}: there are {', '.join(names())}")
    return _FAMILIES[family]


def _recognised(folder: Folder) -> Family:
    candidates = [family for name, family in _FAMILIES.items() if name != FALLBACK]
    for family in (*candidates, _FAMILIES[FALLBACK]):
        if family.recognises(folder):
            return family
    found = ", ".join(sorted(path.name for path in folder.path.iterdir())) or "nothing"
    raise FolderError(
        f"{folder.path}: no family recognises its tokenizer (model_type "
        f"{folder.model_type or 'unknown'!r}; found {found}). A folder needs tokenizer.json and a "
        f"chat template, or name a family: {', '.join(names())}"
    )
