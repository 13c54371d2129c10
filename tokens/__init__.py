"""Text to token ids and back: one renderer per model family, and how far the ids are known.

    load(folder) ─▶ Renderer ── prefix(Prompt)      ids of the chat template, generation prompt
                             ├─ completion(Answer)  ids of what the model wrote, end token
                             ├─ count_prefix(…)     how many tokens a prompt is billed as
                             └─ decode(ids)
    read_body(bytes) ─▶ verify(renderer, prompt, reply, rules) ─▶ Sample

Pure: no network, no clock, no tensors. Every folder is local and holds a model's tokenizer
files. Invariant: text never becomes a special token, whatever it spells.
"""

from tokens.conversation import Answer, Prompt
from tokens.errors import FolderError, HalfCharacter, TokensError, Unrenderable
from tokens.families import load, names
from tokens.fidelity import verify
from tokens.offsets import constant_offset
from tokens.renderer import Renderer
from tokens.response import read_body
from tokens.sample import Counts, Fidelity, Reason, Rules, Sample
from tokens.total import total

__all__ = [
    "Answer",
    "Counts",
    "Fidelity",
    "FolderError",
    "HalfCharacter",
    "Prompt",
    "Reason",
    "Renderer",
    "Rules",
    "Sample",
    "TokensError",
    "Unrenderable",
    "constant_offset",
    "load",
    "names",
    "read_body",
    "total",
    "verify",
]
