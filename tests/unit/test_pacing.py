"""The gate that hands out a worker's slots, and the waits between attempts."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import redis

from workers import pacing
from workers.pacing import BACKOFF_CAP_S, Gate, full_jitter, patient

#: How long threads wait at the gate, and how soon they should be through: one that sleeps to its
#: end has lost its wakeup.
LONG_S = 40.0
SOON_S = 8.0


@pytest.fixture
def gate() -> Gate:
    return Gate()


def waiters(gate: Gate, count: int, pool: ThreadPoolExecutor) -> list["Future[bool]"]:
    """Threads that wait at the gate, once they really do."""
    before = len(gate._condition._waiters)  # type: ignore[attr-defined]
    futures = [pool.submit(gate.acquire, LONG_S) for _ in range(count)]
    until(lambda: len(gate._condition._waiters) == before + count)  # type: ignore[attr-defined]
    return futures


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0)


def test_a_gate_hands_out_as_many_slots_as_its_size(gate: Gate) -> None:
    """It begins closed to all; a slot that was given back is handed out again."""
    assert not gate.acquire(0)
    gate.resize(2)
    assert gate.acquire(0)
    assert gate.acquire(0)
    assert not gate.acquire(0)
    gate.release()
    assert gate.acquire(0)
    assert gate.used == 2


def test_a_gate_that_grows_wakes_as_many_as_it_grew(gate: Gate) -> None:
    """Those who wait get the new slots at once, and no more than there are."""
    with ThreadPoolExecutor(8) as pool:
        futures = waiters(gate, 8, pool)
        gate.resize(3)
        until(lambda: sum(f.done() for f in futures) == 3)
        gate.resize(8)
        assert all(f.result(SOON_S) for f in futures)
    assert gate.used == 8


def test_a_gate_that_shrinks_takes_no_slot_away_and_hands_out_none(gate: Gate) -> None:
    """Slots in use come back by themselves; until then nothing is handed out."""
    gate.resize(4)
    for _ in range(4):
        assert gate.acquire(0)
    gate.resize(1)
    for used in (3, 2, 1):
        assert not gate.acquire(0)
        gate.release()
        assert gate.used == used
    assert not gate.acquire(0)
    gate.release()
    assert gate.acquire(0)


def test_a_gate_that_grows_while_too_many_are_in_use_wakes_the_waiters_it_can(gate: Gate) -> None:
    """Down and up again, with threads waiting: none sleeps on while there is a slot."""
    gate.resize(4)
    for _ in range(4):
        gate.acquire(0)
    with ThreadPoolExecutor(4) as pool:
        futures = waiters(gate, 4, pool)
        gate.resize(1)
        for _ in range(4):
            gate.release()
        until(lambda: sum(f.done() for f in futures) == 1)
        gate.resize(4)
        assert all(f.result(SOON_S) for f in futures)


def test_a_closed_gate_tells_all_who_wait(gate: Gate) -> None:
    """At once, and whoever comes later; growing opens it no more."""
    with ThreadPoolExecutor(6) as pool:
        futures = waiters(gate, 6, pool)
        gate.close()
        assert not any(f.result(SOON_S) for f in futures)
    gate.resize(5)
    assert not gate.acquire(LONG_S)
    assert gate.used == 0


def test_no_wakeup_is_lost_under_many_threads(gate: Gate) -> None:
    """Sixteen threads, a size that changes all the time: all get their turns, none too many."""
    sizes = random.Random(1)
    over, most, lock = threading.Event(), [0], threading.Lock()
    inside = [0]

    def work() -> int:
        turns = 0
        for _ in range(200):
            if not gate.acquire(LONG_S):
                return turns
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with lock:
                inside[0] -= 1
            gate.release()
            turns += 1
        return turns

    def resize() -> None:
        while not over.is_set():
            gate.resize(sizes.randint(0, 4))
        gate.resize(4)

    resizer = threading.Thread(target=resize)
    resizer.start()
    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(work) for _ in range(16)]
        until(lambda: sum(f.done() for f in futures) >= 8)
        over.set()
        resizer.join()
        assert [f.result(SOON_S) for f in futures] == [200] * 16
    assert gate.used == 0
    assert 1 <= most[0] <= 4


@pytest.mark.parametrize("failures", [0, 1, 5, 7, 16, 10_000])
def test_full_jitter_keeps_its_bounds(failures: int) -> None:
    """Uniform on [0, min(60, 0.5 · 2^failures)], whatever the number of failures."""
    longest = min(BACKOFF_CAP_S, 0.5 * 2 ** min(failures, 10))
    waits = [full_jitter(failures) for _ in range(2000)]
    assert min(waits) >= 0
    assert max(waits) <= longest
    assert sum(waits) / len(waits) == pytest.approx(longest / 2, rel=0.1)


PASSING = [
    redis.ConnectionError(),
    redis.TimeoutError(),
    redis.BusyLoadingError(),
    redis.ReadOnlyError(),
    redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'"),
    redis.exceptions.ClusterDownError("CLUSTERDOWN"),
    redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
    redis.ResponseError("BUSY Redis is busy running a script"),
    redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda e: f"{type(e).__name__} {e}"[:30])
def test_patience_outlasts_what_passes(
    error: redis.RedisError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response that was paid for waits for Redis, however long, ever less often."""
    waits: list[float] = []
    monkeypatch.setattr(pacing.time, "sleep", waits.append)
    left = [error] * 9

    def call() -> str:
        if left:
            raise left.pop()
        return "done"

    assert patient(call) == "done"
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_patience_ends_where_waiting_helps_nothing() -> None:
    """A wrong command stays wrong."""

    def call() -> None:
        raise redis.ResponseError("WRONGTYPE Operation against a key")

    with pytest.raises(redis.ResponseError):
        patient(call)
