"""Patience and pacing while a real Valkey is killed and started again."""

import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fleet import broker
from fleet.ledger import Ledger
from fleet.transitions import Claim, Fed, Purchase, Route
from workers.pacing import Pacer, patient


class Server:
    """A Valkey that can be killed and comes back with its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "s"
        self.client = broker.connect(f"unix://{self._socket}")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = broker.start(self._folder / "redis", self._socket)
        patient(self.client.ping)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ef-") as folder:
        running = Server(Path(folder))
        yield running
        running.kill()


def opened(server: Server, numbers: dict[str, int | float]) -> Ledger:
    ledger = Ledger(server.client, "run")
    ledger.open({}, numbers)
    ledger.set_routes([Route("p/int4", "P", 1, 1, start=8)])
    ledger.open_dataset("D", prompts=9, budget_tokens=0, prior_tokens=100)
    ledger.feed("D", [Fed("p", b"{}", 1)], None)
    return ledger


def test_a_commit_outlives_kill_9_and_restart(
    server: Server, numbers: dict[str, int | float]
) -> None:
    """Redis dies while a paid response is in a worker's hands: it is committed when it is back,
    once, and what was on the ledger before is there.
    """
    ledger = opened(server, numbers)
    held = ledger.claim("p", "w", 600)
    assert isinstance(held, Claim)
    server.kill()
    tried = threading.Event()
    results: list[str] = []

    def call() -> str:
        try:
            return ledger.commit(
                held,
                b"{}",
                b"",
                Purchase(5, 1, 1, False, "p/int4"),
            )
        finally:
            tried.set()

    worker = threading.Thread(target=lambda: results.append(patient(call)))
    worker.start()
    assert tried.wait(30)
    assert results == []
    server.start()
    worker.join(30)
    assert results == ["committed"]
    snapshot = ledger.snapshot()
    assert (snapshot.done, snapshot.in_flight) == (1, 0)
    assert call() == "repeated"


def test_a_pacer_keeps_its_share_through_an_outage(
    server: Server, numbers: dict[str, int | float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests in flight go on without the ledger; when it is back the heartbeat goes on."""
    monkeypatch.setattr("workers.pacing.REPORT_INTERVAL_S", 0.02)
    ledger = opened(server, numbers)
    ticked = threading.Event()
    pacer = Pacer(ledger, "w", capacity=4, tick=ticked.set)
    assert pacer.gate.acquire(30)
    server.kill()
    assert pacer.gate.acquire(0)
    server.start()
    ticked.clear()
    assert ticked.wait(30)
    assert ledger.snapshot().workers == 1
    pacer.stop()
    assert ledger.snapshot().workers == 0


def test_a_pacer_goes_on_after_an_error_of_its_owner(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tick raises is logged; the heartbeat goes on."""
    monkeypatch.setattr("workers.pacing.REPORT_INTERVAL_S", 0.01)
    ticks = threading.Semaphore(0)

    def tick() -> None:
        ticks.release()
        raise ValueError("a configuration that cannot be read")

    pacer = Pacer(ledger, "w", capacity=4, tick=tick)
    for _ in range(3):
        assert ticks.acquire(timeout=30)
    pacer.stop()


def test_redis_errors_of_a_dead_server_are_connection_errors(server: Server) -> None:
    """What `patient` waits out is what redis-py raises."""
    server.kill()
    with pytest.raises(redis.ConnectionError):
        server.client.ping()
    server.start()
