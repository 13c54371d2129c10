"""Any Hugging Face tokenizer with a chat template whose models answer without thinking.

SmolLM2, Llama-3 and most others; asked last, so it takes what no other family recognises.
"""

from __future__ import annotations

from tokens.family import Family
from tokens.folder import Folder
from tokens.template_renderer import TemplateRenderer


def _recognises(folder: Folder) -> bool:
    return folder.has("tokenizer.json") and folder.chat_template is not None


def _load(folder: Folder) -> TemplateRenderer:
    return TemplateRenderer(folder, "plain")


FAMILY = Family(_recognises, _load)
