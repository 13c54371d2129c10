"""What the emulator knows while it runs: the one mutable object that handlers share."""

from __future__ import annotations

import time
from collections import defaultdict

from .books import Books, Entry, now
from .completion import Backend, Completion
from .config import Config, Endpoint, Fault
from .money import Bill
from .wire import Head

#: Generations that /generation still knows; the oldest are forgotten.
REMEMBERED = 20_000


class Emulator:
    """Configuration as it is now, books, backend."""

    def __init__(self, config: Config, books: Books, backend: Backend) -> None:
        self.config = config
        self.books = books
        self.backend = backend
        self.endpoints: dict[str, Endpoint] = {e.tag: e for e in config.endpoints}
        self.faults: tuple[Fault, ...] = ()
        self.faults_since = 0.0
        self.set_faults(config.faults)
        #: Set when the process is asked to end: nothing is billed any more.
        self.closing = False
        self.generations: dict[str, tuple[Head, Completion, Entry]] = {}
        self._seen: defaultdict[str, int] = defaultdict(int)

    def set_faults(self, faults: tuple[Fault, ...]) -> None:
        """Replace all faults; their windows count from now."""
        self.faults = faults
        self.faults_since = time.monotonic()

    def nth(self, messages_key: str) -> int:
        """How many requests with these messages came before; counts this one."""
        nth = self._seen[messages_key]
        self._seen[messages_key] = nth + 1
        return nth

    def charge(
        self,
        key: str,
        endpoint: Endpoint,
        head: Head,
        completion: Completion,
        delivered: bool,
    ) -> Bill:
        """Bill the completion, and remember it for /generation."""
        bill = cost(endpoint, completion)
        entry = Entry(
            id=head.id,
            messages_key=key,
            endpoint=endpoint.tag,
            cost_nano=bill.total_nano,
            prompt_tokens=completion.prompt_tokens,
            completion_tokens=completion.completion_tokens,
            time=now(),
            delivered=delivered,
        )
        if not self.closing:
            self.books.charge(entry)
            self._remember(head, completion, entry)
        return bill

    def _remember(self, head: Head, completion: Completion, entry: Entry) -> None:
        self.generations[head.id] = (head, completion, entry)
        if len(self.generations) > REMEMBERED:
            del self.generations[next(iter(self.generations))]


def cost(endpoint: Endpoint, completion: Completion) -> Bill:
    """What the endpoint charges for the counts that it reports."""
    return Bill(
        endpoint.prompt_nano * completion.prompt_tokens,
        endpoint.completion_nano * completion.completion_tokens,
    )
