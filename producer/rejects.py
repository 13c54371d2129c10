"""`rejects/prompts-<dataset>.jsonl`: the rows that cannot be used, each with its reason.

In: rejects. Out: one JSON object a line, with the keys `PROMPT_REJECT_KEYS`. Invariant: the
file appears complete or not at all, and only when there is a reject; one that an earlier,
interrupted call left is replaced.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from fleet.schemas import PROMPT_REJECT_KEYS
from producer.frozen import publish


class RejectFile:
    """Collects rejects under a temporary name; `finish` gives the file its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._file: BinaryIO = self._temporary.open("wb")

    def __enter__(self) -> "RejectFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def write(self, source: str, line: int, reason: str, row: str) -> None:
        record = dict(zip(PROMPT_REJECT_KEYS, (source, line, reason, row), strict=True))
        text = json.dumps(record, ensure_ascii=False) + "\n"
        # Half a surrogate pair becomes its JSON escape, so the file is always UTF-8.
        self._file.write(text.encode("utf-8", "backslashreplace"))

    def finish(self) -> None:
        empty = self._file.tell() == 0
        self._file.close()
        if empty:
            self.path.unlink(missing_ok=True)
        else:
            publish(self._temporary, self.path)
