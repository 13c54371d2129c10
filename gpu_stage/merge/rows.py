"""What a merge remembers of each row: a fixed number of bytes, never its ids or its text.

A row is known by 64-bit hashes; that two of ten million prompts share one has a chance of 3 in a
million. `Names` turns words that repeat (datasets, providers, reasons) into small numbers.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fleet.records import canonical_json
from gpu_stage.merge.settings import FIDELITIES

#: 65 bytes a row.
ROW = np.dtype(
    [
        ("prompt", "u8"),  # of the prompt_id
        ("messages", "u8"),  # of messages and tools as sent
        ("conversation", "u8"),  # of the messages up to the first answer
        ("sets", "u8"),  # evaluation sets that the prompt overlaps, a bit each
        ("part", "i4"),  # place in the list of parts
        ("dataset", "i2"),
        ("provider", "i2"),
        ("fidelity", "i1"),  # its code
        ("truncated", "?"),
        ("turn", "i4"),
        ("length", "i4"),  # tokens
        ("masked", "i4"),  # tokens that the target wrote
        ("cost_usd", "f8"),
        ("reason", "i2"),  # 0: kept
        ("heldout", "?"),
    ]
)

Rows = npt.NDArray[Any]


class Names:
    """Words as numbers, in the order they came."""

    def __init__(self, *first: str) -> None:
        self._codes: dict[str, int] = {}
        for word in first:
            self.code(word)

    def code(self, word: str) -> int:
        return self._codes.setdefault(word, len(self._codes))

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)


def digest(value: Any) -> int:
    """A value of JSON as 64 bits."""
    data = canonical_json(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def fidelity_code(fidelity: str) -> int:
    """Place in FIDELITIES, -1 for rejected."""
    return FIDELITIES.index(fidelity) if fidelity in FIDELITIES else -1


def opening(messages: Sequence[Any]) -> Sequence[Any]:
    """A conversation's messages up to the first answer to its user.

    Whether the target, a dataset or another project's file gave that answer, each row of the
    conversation begins so: alone this tells which rows belong together.
    """
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    asked = roles.index("user") if "user" in roles else len(roles)
    return messages[: roles.index("assistant", asked)] if "assistant" in roles[asked:] else messages


def conversation_of(messages: Sequence[Any]) -> int:
    """What the rows of a conversation share: tools and sampling aside."""
    return digest(opening(messages))


def read_json(text: str) -> Any:
    """JSON as a run holds it, half surrogate pairs included."""
    return json.loads(text)
