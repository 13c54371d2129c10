"""Text to token ids and back: one renderer per model family, and how far the ids are known.

    load(folder) ─▶ Renderer ── prefix(Prompt)      ids of the chat template, generation prompt
                             ├─ completion(Answer)  ids of what the model wrote, end token
                             ├─ count_prefix(…)     how many tokens a prompt is billed as
                             └─ decode(ids)

Pure: no network, no clock, no tensors. Every folder is local and holds a model's tokenizer
files. Invariant: text never becomes a special token, whatever it spells.
"""

from tokens.conversation import Answer, Prompt
from tokens.errors import FolderError, TokensError, Unrenderable
from tokens.families import load, names
from tokens.renderer import Renderer

__all__ = [
    "Answer",
    "FolderError",
    "Prompt",
    "Renderer",
    "TokensError",
    "Unrenderable",
    "load",
    "names",
]
