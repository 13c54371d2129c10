"""Claims on work of the GPU queue: a piece of hours, held by one worker at a time.

Redis delivers a message again when its worker has not finished within the visibility timeout, and
a GPU task runs longer than any. So a worker claims its piece on the ledger first, and keeps the
claim alive while it works; who comes second finds it taken. The claim of a worker that died runs
out by itself.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import LockError
from redis.lock import Lock

from fleet.keys import work_claim

#: A claim that nobody keeps alive ends after so long.
LEASE_S = 60.0
#: How often it is kept alive.
RENEW_S = 15.0


class WorkClaim:
    """A claim that this process has, unless it slept past its end."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def held(self) -> bool:
        """Whether the claim is still this worker's. While Redis is away nobody can know: then it
        is, as no other worker can have taken it either."""
        try:
            return bool(self._lock.owned())
        except redis.ConnectionError:
            return True


@contextmanager
def claim_work(client: redis.Redis, folder: str, name: str) -> Iterator[WorkClaim | None]:
    """Claim a piece of work; None while another worker has it.

    Args:
        folder: what the work is for, the same text on every machine.
        name: of the piece.
    """
    lock = client.lock(work_claim(folder, name), timeout=LEASE_S, thread_local=False)
    if not lock.acquire(blocking=False):
        yield None
        return
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(lock, over), daemon=True, name="claim")
    keeper.start()
    try:
        yield WorkClaim(lock)
    finally:
        over.set()
        keeper.join()
        _let_go(lock)


def claimed_work(client: redis.Redis, folder: str, name: str) -> bool:
    """Whether a worker has the piece."""
    return bool(client.exists(work_claim(folder, name)))


def _keep(lock: Lock, over: threading.Event) -> None:
    while not over.wait(RENEW_S):
        try:
            lock.reacquire()
        except LockError:  # it ran out while this process slept: `held` says so
            return
        except redis.ConnectionError:
            continue


def _let_go(lock: Any) -> None:
    try:
        lock.release()
    except (LockError, redis.ConnectionError):  # it runs out by itself
        return
