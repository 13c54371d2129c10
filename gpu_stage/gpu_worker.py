"""What a worker of the queue `gpu` does with a task: claim the shard, make it, say how far it is.

It takes torch, so `gpu_stage.tasks` imports it when the first such task comes. The target stays
loaded from one task to the next.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from fleet.work_claims import WorkClaim, claim_work
from gpu_stage.hidden.make import Outcome, Watch, make_shard
from gpu_stage.hidden.target import engine_for
from gpu_stage.hidden.work import open_work

log = logging.getLogger(__name__)
#: How often progress is told, at most.
TELL_S = 2.0


def extract_shard(
    client: redis.Redis, folder: str, shard: str, tell: Callable[[dict[str, Any]], None]
) -> Outcome:
    """Make one shard of a folder.

    Args:
        tell: what the task's state becomes, a few fields.
    """
    work = open_work(Path(folder))
    piece = work.named(shard)
    with claim_work(client, folder, shard) as claim:
        if claim is None:
            return Outcome.BUSY
        watch = _Told(claim, piece.tokens, tell)
        return make_shard(work, piece, lambda: engine_for(work.order), watch)


class _Told(Watch):
    """Progress as the state of a task."""

    def __init__(
        self, claim: WorkClaim, tokens: int, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self._claim, self._all, self._tell = claim, tokens, tell
        self._tokens, self._began, self._told_at = 0, time.monotonic(), 0.0

    def done(self, samples: int, tokens: int) -> None:
        self._tokens += tokens
        now = time.monotonic()
        if now - self._told_at >= TELL_S:
            self._told_at = now
            speed = self._tokens / max(now - self._began, 1e-9)
            self._tell({"tokens": self._tokens, "of": self._all, "tokens_s": round(speed)})

    def waiting(self) -> None:
        self._tell({"waiting": "the spool is full"})

    def still_mine(self) -> bool:
        return self._claim.held()
