"""Which shards a source becomes: a matter of lengths alone, so that every machine cuts alike.

In: a source, an order. Out: `Piece`s, each of which becomes one shard. Rows stay in the order of
their part, and a shard never crosses parts, so that what is new makes new shards only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fleet.errors import InputError
from gpu_stage.hidden import index
from gpu_stage.hidden.index import Contract
from gpu_stage.hidden.order import Order
from gpu_stage.hidden.shard_file import Shape, token_bytes
from gpu_stage.hidden.source import Source, SourcePart


@dataclass(frozen=True)
class Piece:
    """Rows of a part that become one shard."""

    part: SourcePart
    number: int
    start: int
    end: int
    samples: int
    tokens: int

    @property
    def name(self) -> str:
        """What its shard is called, under the folder of shards."""
        return f"{self.part.name}.{self.number:04}.safetensors"

    def shape(self, order: Order) -> Shape:
        return Shape(self.tokens, self.samples, order.hidden_size, order.storage)


@dataclass(frozen=True)
class Work:
    """All that an order asks for."""

    folder: Path
    order: Order
    source: Source

    @cached_property
    def pieces(self) -> list[Piece]:
        most = max(
            1, self.order.shard_bytes // token_bytes(self.order.hidden_size, self.order.storage)
        )
        return [piece for part in self.source.parts for piece in _cut(part, most)]

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {}

    def path(self, piece: Piece) -> Path:
        return self.folder / piece.name

    def contract(self, piece: Piece) -> Contract:
        name = piece.part.name
        if name not in self._hashes:
            self._hashes[name] = piece.part.sha256()
        order = self.order
        rows = (piece.start, piece.end)
        source = index.Source(name, self._hashes[name], rows)
        return Contract(order.target, order.layers, order.storage, source)

    def made(self, piece: Piece) -> bool:
        """Whether its shard was made, be it that training has consumed it since."""
        path = index.index_of(self.path(piece))
        try:
            return path.exists() and index.read_index(path).contract == self.contract(piece)
        except InputError:
            return False

    def named(self, name: str) -> Piece:
        """A piece by its shard's name.

        Raises:
            InputError: the source has none.
        """
        for piece in self.pieces:
            if piece.name == name:
                return piece
        raise InputError(f"{self.source.directory}: no samples there for a shard {name}")


def _cut(part: SourcePart, most_tokens: int) -> Iterator[Piece]:
    """Pieces of about `most_tokens`, or of one sample that is longer."""
    number = start = 0
    lengths = part.lengths()
    ends = [*_ends(lengths, most_tokens), len(lengths)]
    for end in ends:
        mine = [length for length in lengths[start:end] if length]
        if mine:
            yield Piece(part, number, start, end, len(mine), sum(mine))
            number += 1
        start = end


def _ends(lengths: Sequence[int], most_tokens: int) -> Iterator[int]:
    tokens = 0
    for row, length in enumerate(lengths):
        if tokens and tokens + length > most_tokens:
            yield row
            tokens = 0
        tokens += length
