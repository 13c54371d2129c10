"""Lines of JSON from elsewhere: read one by one, and set aside where they cannot be used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.schemas import PROMPT_REJECT_KEYS
from gpu_stage.conversations.answered import Object, Unusable

EXCERPT_CHARS = 2_000


@dataclass(frozen=True)
class Line:
    """A line of a file."""

    path: Path
    number: int
    data: bytes

    def row(self) -> Object:
        """The object in it.

        Raises:
            Unusable: it holds something else, or text that no tokenizer can spell.
        """
        row = read_json(self.data)
        if not isinstance(row, dict):
            raise Unusable("not an object")
        return row


def read_json(text: str | bytes) -> Any:
    """What a text of JSON says.

    Raises:
        Unusable: it is none, or holds text that no tokenizer can spell.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Unusable("half a surrogate pair") from error
    except (ValueError, RecursionError) as error:
        raise Unusable(f"not JSON: {error}") from error
    return value


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that are not blank."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if data.strip():
                yield Line(path, number, data)


class Rejects:
    """`rejects/conversations-<dataset>.jsonl`; begun anew with each import."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def write(self, line: Line, reason: str) -> None:
        text = line.data.decode("utf-8", "replace").strip()[:EXCERPT_CHARS]
        values = (str(line.path), line.number, reason, text)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(zip(PROMPT_REJECT_KEYS, values, strict=True))) + "\n")
