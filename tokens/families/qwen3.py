"""Qwen3 and QwQ: ChatML with `<think>` and `<tool_call>` as tokens of their own.

History: the template drops the reasoning of every answer before the last user message, and
writes an empty thought into a final answer that has none.
"""

from __future__ import annotations

from tokens.family import Family
from tokens.folder import Folder
from tokens.thinking import ThinkingRenderer

TOKENS = {"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"}


def _recognises(folder: Folder) -> bool:
    return folder.has("tokenizer.json") and folder.added_tokens.keys() >= TOKENS


def _load(folder: Folder) -> ThinkingRenderer:
    return ThinkingRenderer(folder, "qwen3", thinking_variable="enable_thinking")


FAMILY = Family(_recognises, _load)
