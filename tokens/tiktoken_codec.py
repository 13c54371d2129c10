"""Text to ids and back with a `tiktoken.model` file.

In: the file (one base64 token and its rank a line), a split pattern, the special tokens' ids.
Invariant: only `special` names special tokens; `encode` never makes one out of text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tiktoken

from tokens.conversation import utf8
from tokens.errors import FolderError

#: The lengths at which Kimi's own tokenizer cuts a text before it splits it into words: a longer
#: word costs quadratic time. The cuts change ids, so they are part of the tokenizer.
LONGEST_TEXT = 400_000
LONGEST_RUN = 25_000
_RUN = re.compile(r"\s+|\S+")


class TiktokenCodec:
    """The bytes of a vocabulary and the rule that splits text into words."""

    def __init__(self, path: Path, pattern: str, special: Mapping[str, int]) -> None:
        self.special = dict(special)
        self._encoding = tiktoken.Encoding(
            path.name,
            pat_str=pattern,
            mergeable_ranks=read_ranks(path),
            special_tokens=self.special,
        )

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return self._encoding.max_token_value + 1

    def encode(self, text: str) -> list[int]:
        if len(utf8(text)) <= LONGEST_RUN:
            return self._encoding.encode_ordinary(text)
        return [n for part in cut(text) for n in self._encoding.encode_ordinary(part)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._encoding.decode(ids)

    def bytes_of(self, token_id: int) -> bytes | None:
        """What a token spells, a special token its name; None for an id that is no token."""
        try:
            return self._encoding.decode_single_token_bytes(token_id)
        except KeyError:
            return None


def cut(text: str) -> Iterator[str]:
    """The text in pieces: every LONGEST_TEXT characters, and where a run of spaces, or of
    anything else, grows past LONGEST_RUN."""
    for start in range(0, len(text), LONGEST_TEXT):
        yield from _cut_runs(text[start : start + LONGEST_TEXT])


def _cut_runs(text: str) -> Iterator[str]:
    start = 0
    for run in _RUN.finditer(text):
        for at in range(run.start() + LONGEST_RUN, run.end(), LONGEST_RUN):
            yield text[start:at]
            start = at
    yield text[start:]


def read_ranks(path: Path) -> dict[bytes, int]:
    """The vocabulary of a `tiktoken.model` file.

    Raises:
        FolderError: a line is not a base64 token and its rank.
    """
    ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise FolderError(
                f"{path}, line {number}: not a base64 token and a rank ({error}): "
                "fetch the file again (a Git LFS pointer is no tokenizer)"
            ) from error
    return ranks
