"""SmolLM2's completions with the ids that were sampled, tokenised anew: truth and input in one row.

In: a file of `../shared/data/smollm2` by name, and the tokenizer of the converted weights. Rows
whose text is not the bytes of the sampled ids (a torn character at the end, a special token
spelt out) are left out: no segmentation of the text is theirs. The end token stands apart.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from tokens.segmentation import Vocabulary

DATA = Path(__file__).parents[2] / "shared" / "data" / "smollm2"
END = 2


@dataclass(frozen=True)
class Row:
    """One completion."""

    prompt_ids: list[int]
    canonical: list[int]
    sampled: list[int]
    #: The end token, if the completion has one.
    ending: list[int]
    #: 0 or 1, by a hash of the prompt.
    half: int

    @property
    def off(self) -> bool:
        return len(self.canonical) != len(self.sampled)

    @property
    def fewer(self) -> bool:
        """Whether fewer tokens were sampled than the text has."""
        return len(self.sampled) < len(self.canonical)


class Rows:
    """The tokenizer, and rows read with it."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of the converted model."""
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        definition = json.loads(self.tokenizer.to_str())
        special = {token["id"] for token in definition["added_tokens"]}
        letters = _bytes_of_letters()
        self.vocabulary = Vocabulary(
            {
                token: bytes(letters[letter] for letter in spelling)
                for spelling, token in definition["model"]["vocab"].items()
                if token not in special
            }
        )

    def read(self, name: str) -> list[Row]:
        """The rows of one file."""
        return list(self._rows(pq.read_table(DATA / f"{name}.parquet").to_pylist()))

    @staticmethod
    def texts(name: str) -> list[str]:
        """The completions of one file, as text."""
        contents: list[str] = pq.read_table(DATA / f"{name}.parquet")["content"].to_pylist()
        return contents

    def _rows(self, records: list[dict[str, Any]]) -> Iterator[Row]:
        for record in records:
            ids = record["token_ids"]
            ending = ids[-1:] if ids[-1:] == [END] else []
            sampled = ids[: len(ids) - len(ending)]
            canonical = self.tokenizer.encode(record["content"], add_special_tokens=False).ids
            if self.vocabulary.text(canonical) == self.vocabulary.text(sampled):
                half = zlib.crc32(record["prompt"].encode()) % 2
                yield Row(record["prompt_token_ids"], canonical, sampled, ending, half)


def _bytes_of_letters() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: printable Latin-1 as itself, the rest above it."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + at): byte for at, byte in enumerate(others)
    }
