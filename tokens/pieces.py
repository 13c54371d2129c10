"""A rendered conversation in pieces: special tokens, and text between them.

Invariant: a piece is a special token because the renderer says so, never because of what it
spells. `Shield` brings that to chat templates, which mix both into one text: what people wrote
is altered where it spells a special token, and put right again after the template has run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from tokens.errors import Unrenderable

#: Unicode noncharacters: none is in any text that was meant to be read.
MARKS = [chr(0xFDD0 + n) for n in range(32)]


class Special(str):
    """A piece that is one special token; any other piece is text."""

    __slots__ = ()


def assemble(
    pieces: Iterable[str], special: Mapping[str, int], encode: Callable[[str], list[int]]
) -> list[int]:
    """Token ids of pieces; neighbouring texts are one text."""
    ids: list[int] = []
    for is_special, run in groupby(pieces, lambda piece: isinstance(piece, Special)):
        if is_special:
            ids += [special[piece] for piece in run]
        elif text := "".join(run):
            ids += encode(text)
    return ids


class Shield:
    """Keeps text that spells a special token apart from the token."""

    def __init__(self, special: Iterable[str]) -> None:
        longest_first = sorted(special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def shield(self, value: Any) -> tuple[Any, str]:
        """`value` with a mark inside every look-alike, and the mark; "" when there is none.

        Raises:
            Unrenderable: there is no mark that the texts do not have.
        """
        if not any(self._pattern.search(text) for text in _texts(value)):
            return value, ""
        mark = next((mark for mark in MARKS if not any(mark in t for t in _texts(value))), "")
        if not mark:
            raise Unrenderable("the text has special tokens and every noncharacter: it is no text")
        return _mapped(value, lambda text: self._broken(text, mark)), mark

    def pieces(self, text: str, mark: str = "") -> Iterator[str]:
        """A template's output: its special tokens, and the texts between them without marks."""
        start = 0
        for found in self._pattern.finditer(text):
            yield text[start : found.start()].replace(mark, "")
            yield Special(found[0])
            start = found.end()
        yield text[start:].replace(mark, "")

    def _broken(self, text: str, mark: str) -> str:
        while self._pattern.search(text):  # overlapping spellings need another round
            text = self._pattern.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        return text


def _texts(value: Any) -> Iterator[str]:
    """All strings in JSON-like data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _texts(key)
            yield from _texts(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _texts(child)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _mapped(child, change) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(child, change) for child in value]
    return value
