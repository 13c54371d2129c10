"""Prompts as words, and runs of words as numbers: what decontamination and near-duplicates share.

Words are lower-cased, without punctuation; a character of Chinese, Japanese or Korean is a word of
its own, since those do not put spaces between theirs. An n-gram's number is the same on every
machine and in every process.
"""

import re
import unicodedata
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Numbers = npt.NDArray[np.uint64]

#: Kana, ideographs and Hangul.
ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
WORD = re.compile(rf"[{ALONE}]|[^\W_{ALONE}]+")
#: The user's role, in `role` or in `from`.
USER = ("user", "human")
#: An odd multiplier: sums of powers of it tell orders of words apart.
BASE = 0x9E3779B97F4A7C15


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return WORD.findall(unicodedata.normalize("NFKC", text).lower())


def user_texts(messages: Sequence[Any]) -> list[str]:
    """What the user says in each message of a conversation."""
    asked = [m for m in messages if isinstance(m, dict) and m.get("role", m.get("from")) in USER]
    return [text_of(message.get("content", message.get("value"))) for message in asked]


def text_of(content: Any) -> str:
    """The text of a message's content, of parts the texts joined."""
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def ngrams(words: Sequence[str], n: int) -> Numbers:
    """A number for each run of `n` words; of fewer words, one for all of them."""
    if not words:
        return np.empty(0, np.uint64)
    codes = (zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words)
    spread = scrambled(np.fromiter(codes, np.uint64, len(words)))
    runs = sliding_window_view(spread, min(n, len(words)))
    return scrambled(runs @ _powers(runs.shape[1]))


@cache
def _powers(n: int) -> Numbers:
    return np.array([pow(BASE, place, 1 << 64) for place in range(n)], np.uint64)


def scrambled(numbers: Numbers) -> Numbers:
    """A bijection of 64 bits after which near numbers are far apart (the finaliser of
    SplitMix64)."""
    mixed = numbers + np.uint64(BASE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)
