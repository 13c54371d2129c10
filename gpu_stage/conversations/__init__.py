"""Conversations in and out: what a run bought as other projects read it, and theirs as a run.

    completions (+ samples) ─▶ export ─▶ FILE.jsonl     one line an answer
    FILE.jsonl … ─▶ import ─▶ completions/dataset=…     then `gpu-stage tokens`, `gpu-stage merge`

Each format is one file in `formats/`: how an answer is written, how a line is read, and what it
cannot carry.
"""

from gpu_stage.conversations.bring import import_conversations
from gpu_stage.conversations.give import export_conversations

__all__ = ["export_conversations", "import_conversations"]
