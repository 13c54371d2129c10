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
        self._added = {token["content"] for token in added}
        self._of_bytes = _decodes_bytes(definition.get("decoder"))
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

    def bytes_of(self, token_id: int) -> bytes | None:
        """What a token spells, a special token its name; None for an id that is no token, and
        for a vocabulary that is not of bytes."""
        token = self._template.id_to_token(token_id)
        if token is None:
            return None
        if token in self._added:
            return token.encode()
        if not self._of_bytes or not _BYTES.keys() >= set(token):
            return None
        return bytes(_BYTES[letter] for letter in token)


def is_special(token: Mapping[str, Any]) -> bool:
    """Whether an added token is markup: `<think>` is, though it is not flagged `special`; a run
    of spaces that was added to a vocabulary is not."""
    name: str = token["content"]
    return bool(token["special"]) or (name.startswith("<") and name.endswith(">"))


def _decodes_bytes(decoder: Any) -> bool:
    """Whether a vocabulary spells bytes as letters, as GPT-2 began to."""
    if not decoder:
        return False
    return decoder["type"] == "ByteLevel" or any(map(_decodes_bytes, decoder.get("decoders", ())))


def _letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + at): byte for at, byte in enumerate(rest)}


_BYTES = _letters()


def _tokenizer(definition: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(definition))


def _without_unicode_forms(normalizer: Any) -> Any:
    if not normalizer or normalizer["type"] in UNICODE_FORMS:
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    kept = [n for n in map(_without_unicode_forms, normalizer["normalizers"]) if n]
    return {**normalizer, "normalizers": kept}
