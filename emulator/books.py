"""The emulator's books: what was charged, for what, to the nano-USD.

In: one entry for each billed request, top-ups. Out: totals that a client's own spend
is held against. Invariant: the cost in a response is the cost of its entry. With a
file, each entry is a JSON line, written before the response's last byte, so that the
books outlive a kill -9 of the emulator and go on when it is started again.

Imports nothing heavy: clients' tests take `messages_key` from here.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from .money import usd_text

#: json.dumps with these arguments would build an encoder for each request.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def messages_key(messages: Any) -> str:
    """What the emulator knows a conversation by: 32 hex digits of its canonical JSON."""
    return sha256(_CANONICAL.encode(messages).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Entry(NamedTuple):
    """One billed request."""

    id: str
    messages_key: str
    endpoint: str
    cost_nano: int
    prompt_tokens: int
    completion_tokens: int
    time: float
    delivered: bool

    def public(self) -> dict[str, Any]:
        row = self._asdict()
        row["cost_usd"] = usd_text(row.pop("cost_nano"))
        return row


class Books:
    """Money and counts since the start, or since the file's first line."""

    def __init__(self, balance_nano: int = 0, path: Path | None = None) -> None:
        #: What the account was given. 0: no limit.
        self.balance_nano = balance_nano
        #: Of the balance, what requests in flight are expected to cost.
        self.reserved_nano = 0
        self.spent_nano = 0
        self.entries: list[Entry] = []
        #: Requests by how they ended: `ok`, a fault's kind, or a refusal's name.
        self.outcomes: Counter[str] = Counter()
        #: Outcomes by endpoint tag.
        self.by_endpoint: dict[str, Counter[str]] = {}
        self.requests = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._file = self._reopen(path) if path else None

    @property
    def limited(self) -> bool:
        return self.balance_nano > 0

    @property
    def remaining_nano(self) -> int:
        return self.balance_nano - self.spent_nano

    def arrive(self) -> None:
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def leave(self, outcome: str, endpoint: str = "") -> None:
        self.in_flight -= 1
        self.outcomes[outcome] += 1
        if endpoint:
            self.by_endpoint.setdefault(endpoint, Counter())[outcome] += 1

    def charge(self, entry: Entry) -> None:
        self._count(entry)
        if self._file is not None:
            os.write(self._file, json.dumps(entry._asdict()).encode() + b"\n")

    def topup(self, nano: int) -> None:
        """More money: the next request is let in. Nothing, where there is no limit."""
        if not self.limited:
            return
        self.balance_nano += nano
        if self._file is not None:
            os.write(self._file, json.dumps({"topup_nano": nano}).encode() + b"\n")

    def summary(self) -> dict[str, Any]:
        return {
            "total_usd": usd_text(self.spent_nano),
            "billed_requests": len(self.entries),
            "balance_usd": usd_text(self.balance_nano) if self.limited else None,
            "remaining_usd": usd_text(self.remaining_nano) if self.limited else None,
            "requests": self.requests,
            "in_flight": self.in_flight,
            "max_in_flight": self.most_in_flight,
            "outcomes": dict(self.outcomes),
            "endpoints": self._endpoint_figures(),
        }

    def _endpoint_figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for tag, outcomes in self.by_endpoint.items():
            figures[tag] = {
                "billed_requests": 0,
                "cost_nano": 0,
                "prompt_tokens": 0,
                "completion_tokens": 0,
                "outcomes": dict(outcomes),
            }
        for entry in self.entries:
            row = figures.setdefault(entry.endpoint, dict.fromkeys(_SUMS, 0) | {"outcomes": {}})
            row["billed_requests"] += 1
            row["cost_nano"] += entry.cost_nano
            row["prompt_tokens"] += entry.prompt_tokens
            row["completion_tokens"] += entry.completion_tokens
        for row in figures.values():
            row["cost_usd"] = usd_text(row.pop("cost_nano"))
        return figures

    def _count(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.spent_nano += entry.cost_nano

    def _reopen(self, path: Path) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_bytes().splitlines():
                self._replay(line)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _replay(self, line: bytes) -> None:
        row = json.loads(line)
        if "topup_nano" in row:
            self.balance_nano += row["topup_nano"]
        else:
            self._count(Entry(**row))


_SUMS = ("billed_requests", "cost_nano", "prompt_tokens", "completion_tokens")


def now() -> float:
    """The wall clock, to the millisecond."""
    return round(time.time(), 3)
