"""DeepSeek-V3 and R1, and the models distilled from R1, which share its chat tokens.

History: the templates drop reasoning from past answers. V3 does not think, R1 always does, and
V3.1 on demand: the template says which, see `tokens.thinking`.
"""

from __future__ import annotations

from tokens.family import Family
from tokens.folder import Folder
from tokens.thinking import ThinkingRenderer

TOKENS = {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"}


def _recognises(folder: Folder) -> bool:
    return folder.has("tokenizer.json") and folder.added_tokens.keys() >= TOKENS


def _load(folder: Folder) -> ThinkingRenderer:
    return ThinkingRenderer(folder, "deepseek", thinking_variable="thinking")


FAMILY = Family(_recognises, _load)
