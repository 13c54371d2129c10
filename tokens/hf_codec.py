"""Text to ids and back with a Hugging Face `tokenizer.json`.

Two views of one vocabulary: `template` reads special tokens, for what a chat template wrote;
`plain` has none, for text of people and models. Invariant: `decode(encode(text)) == text`,
so `plain` also goes without Unicode normalisation, which would change what a model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from tokens.conversation import utf8

UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


class HfCodec:
    """A fast tokenizer, with and without its special tokens."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        added = definition["added_tokens"]
        self.special = {token["content"]: token["id"] for token in added if is_special(token)}
        self._template = _tokenizer(definition)
        ordinary = [token for token in added if not is_special(token)]
        normalizer = _without_unicode_forms(definition.get("normalizer"))
        self._plain = _tokenizer({**definition, "added_tokens": ordinary, "normalizer": normalizer})

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return max(self._template.get_vocab().values()) + 1

    def encode(self, text: str) -> list[int]:
        """Ids of text that may spell special tokens, and means none."""
        return self._plain.encode(utf8(text), add_special_tokens=False).ids

    def encode_template(self, text: str) -> list[int]:
        """Ids of text in which special tokens are what they spell."""
        return self._template.encode(utf8(text), add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._template.decode(list(ids), skip_special_tokens=False)


def is_special(token: Mapping[str, Any]) -> bool:
    """Whether an added token is markup: `<think>` is, though it is not flagged `special`; a run
    of spaces that was added to a vocabulary is not."""
    name: str = token["content"]
    return bool(token["special"]) or (name.startswith("<") and name.endswith(">"))


def _tokenizer(definition: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(definition))


def _without_unicode_forms(normalizer: Any) -> Any:
    if not normalizer or normalizer["type"] in UNICODE_FORMS:
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    kept = [n for n in map(_without_unicode_forms, normalizer["normalizers"]) if n]
    return {**normalizer, "normalizers": kept}
