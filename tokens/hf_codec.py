"""Text to ids and back with a Hugging Face `tokenizer.json`.

Three views of one vocabulary. `template` reads special tokens, for what a chat template wrote.
`people` reads none, for what people wrote into a prompt, and else does as the server does, down
to Unicode normalisation. `plain` does without that too, since it would change what a model
wrote. Invariant: `decode(encode(text)) == text`, or the text is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from tokens.conversation import utf8
from tokens.errors import Unrenderable

UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


class HfCodec:
    """A fast tokenizer, with and without its special tokens."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        added = definition["added_tokens"]
        self.special = {token["content"]: token["id"] for token in added if is_special(token)}
        self._added = {token["content"] for token in added}
        self._of_bytes = _decodes_bytes(definition.get("decoder"))
        self._template = _tokenizer(definition)
        self._missing = self._missing_bytes() if self._of_bytes else frozenset()
        ordinary = [token for token in added if not is_special(token)]
        people = {**definition, "added_tokens": ordinary}
        plain = people | {"normalizer": _without_unicode_forms(definition.get("normalizer"))}
        self._plain = _tokenizer(plain)
        self._people = _tokenizer(people) if people != plain else self._plain

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return max(self._template.get_vocab().values()) + 1

    def encode(self, text: str) -> list[int]:
        """Ids of a model's text that may spell special tokens, and means none.

        Raises:
            Unrenderable: the vocabulary cannot spell the text, and would change it.
        """
        utf8(text)
        if self._missing and (lost := set(text.encode()) & self._missing):
            raise Unrenderable(f"the vocabulary has no token for the byte 0x{min(lost):02X}")
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if not self._of_bytes and self.decode(ids) != text:
            raise Unrenderable(f"the vocabulary spells {text[:40]!r} as {self.decode(ids)[:40]!r}")
        return ids

    def encode_people(self, text: str) -> list[int]:
        """Ids of a prompt's text that may spell special tokens, and means none."""
        return self._people.encode(utf8(text), add_special_tokens=False).ids

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

    def _missing_bytes(self) -> frozenset[int]:
        """Bytes that no token spells alone: SmolLM2 has some, in characters that it never saw."""
        letters = _BYTES.items()
        return frozenset(n for letter, n in letters if self._template.token_to_id(letter) is None)


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
    whole = {**definition, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps(whole))


def _without_unicode_forms(normalizer: Any) -> Any:
    if not normalizer or normalizer["type"] in UNICODE_FORMS:
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    kept = [n for n in map(_without_unicode_forms, normalizer["normalizers"]) if n]
    return {**normalizer, "normalizers": kept}
