"""The watchdog tells a consumer that has stopped from a worker that merely waits."""

import queue
import threading
import time

import pytest
import redis

from fleet import app
from workers import watchdog
from workers.watchdog import STALLED, Watchdog

PATIENCE_S = 0.3


class Process:
    """What would end; a queue of its own, in a real Valkey."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client, self.name = client, name
        self.ended: queue.Queue[int] = queue.Queue()
        self.stopped = threading.Event()
        self.watchdog = Watchdog(client, 2, PATIENCE_S, self.stopped.set, self.ended.put)

    def outlives(self, seconds: float) -> bool:
        try:
            self.ended.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def process(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Process:
    """A watched process, looked at often."""
    name = f"watched-{time.monotonic_ns()}"
    monkeypatch.setattr(watchdog, "QUEUE", name)
    monkeypatch.setattr(watchdog, "LOOK_S", 0.02)
    assert name != app.QUEUE
    return Process(client, name)


def test_a_worker_without_work_lives(process: Process) -> None:
    """An empty queue is no stall, however long."""
    assert process.outlives(4 * PATIENCE_S)


def test_a_worker_whose_threads_are_all_busy_lives(process: Process) -> None:
    """Long answers: nothing new can begin."""
    with process.watchdog.working(), process.watchdog.working():
        process.client.lpush(process.name, "message")
        assert process.outlives(4 * PATIENCE_S)
        process.client.delete(process.name)


def test_a_worker_that_takes_nothing_ends_when_what_it_has_is_done(process: Process) -> None:
    """Messages wait and a thread is free: it starts nothing more, finishes, and ends loudly."""
    with process.watchdog.working():
        process.client.lpush(process.name, "message")
        assert process.stopped.wait(10)
        assert process.ended.empty(), "a request in flight is finished"
    assert process.ended.get(timeout=10) == STALLED
    process.client.delete(process.name)
