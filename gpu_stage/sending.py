"""Work sent to Celery workers, watched, and sent again when it was lost.

In: task messages by the name of what they make, and ways to see on the disk what became of it. Out:
what is done, as it is done. Redis may lose or double a message, so the disk says what is done; a
piece that nobody makes is sent again. Interrupted, what was sent is made all the same.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import redis
from celery import Celery

from gpu_stage.console import err

POLL_S = 0.5
#: So long nothing is being made before somebody is told, or pieces are sent again.
IDLE_S = 15.0
#: A piece that is lost so often breaks its workers.
MOST_SENT = 3
NO_WORKER = (
    "{:,} {} wait, and nothing takes them: is `celery -A gpu_stage worker -Q {}` running, "
    "with this REDIS_URL?"
)
GIVEN_UP = f"sent {MOST_SENT} times and not made; see the workers' logs"


Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Kind:
    """What is sent."""

    task: str
    queue: str
    #: What the pieces are called to their user.
    plural: str


class Sending(Generic[Piece]):
    """Pieces that are to be made by workers."""

    def __init__(
        self,
        kind: Kind,
        arguments: dict[Piece, tuple[Any, ...]],
        busy: Callable[[Iterable[Piece]], bool],
    ) -> None:
        """
        Args:
            arguments: of the task, by the piece that it makes.
            busy: whether any of these pieces is being made now.
        """
        self.left = arguments
        self._kind, self._busy = kind, busy
        self._times = 0
        self._lively_at = time.monotonic()

    def go_on(self, app: Celery, client: redis.Redis) -> dict[Piece, str]:
        """Send what has to be sent, then wait a moment; what is given up, with the reason."""
        if self._due(int(client.llen(self._kind.queue))):
            self._times += 1
            if self._times > MOST_SENT:
                left, self.left = self.left, {}
                return dict.fromkeys(left, GIVEN_UP)
            self._send(app)
        time.sleep(POLL_S)
        return {}

    def done(self, pieces: Iterable[Piece]) -> None:
        """These need not be sent again."""
        for piece in pieces:
            self.left.pop(piece)
            self._lively_at = time.monotonic()

    def _due(self, waiting: int) -> bool:
        """Whether to send what is not there: at first, and when nothing is made or waits."""
        if not self._times:
            return True
        if self._busy(self.left):
            self._lively_at = time.monotonic()
        if time.monotonic() - self._lively_at < IDLE_S:
            return False
        self._lively_at = time.monotonic()
        if waiting:
            kind = self._kind
            text = NO_WORKER.format(waiting, kind.plural, kind.queue)
            err.print(text, highlight=False, soft_wrap=True)
        return not waiting

    def _send(self, app: Celery) -> None:
        kind = self._kind
        with app.producer_pool.acquire(block=True) as producer:
            for arguments in self.left.values():
                app.send_task(kind.task, arguments, queue=kind.queue, producer=producer)
