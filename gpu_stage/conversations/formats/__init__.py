"""The formats by name."""

from gpu_stage.conversations.answered import Format
from gpu_stage.conversations.formats.openai import OPENAI
from gpu_stage.conversations.formats.sharegpt import SHAREGPT
from gpu_stage.conversations.formats.specforge import SPECFORGE
from gpu_stage.conversations.formats.speculators import SPECULATORS

#: In the order in which a line is tried: one with ids may hold messages too.
FORMATS: dict[str, Format] = {
    "speculators": SPECULATORS,
    "sharegpt": SHAREGPT,
    "specforge": SPECFORGE,
    "openai": OPENAI,
}
