"""kill -9 of every process of a running fleet: the run ends whole, and nothing is bought twice
but what was in flight in the killed worker."""

import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import broker
from fleet.app import QUEUE, make_app

PROMPTS = 1500
THREADS = 40
CONFIG = """
seed = 3
keepalive_s = 0.2
[backend.latency]
kind = "exponential"
mean_s = 0.3
max_s = 1.0
"""
RUN = """
[run]
name = "kills"
model = "moonshotai/kimi-k2.5"
concurrency = 80
deadline_s = 8
[sampling]
max_tokens = 200
[providers]
quantizations = ["int4"]
[[datasets]]
name = "B1"
path = "{path}"
"""


class Fleet:
    """Redis, two workers, collector and feeder, each a process of its own."""

    def __init__(self, run, socket: Path) -> None:
        self.run, self.socket, self.url = run, socket, f"unix://{socket}"
        self.start_redis()
        self.workers = [self.start_worker(n) for n in (1, 2)]
        self.collector = self.start_collector()
        self.feeder = self.start_feeder()

    def start_redis(self) -> None:
        self.redis = broker.start(self.run.directory / "redis", self.socket)
        self.run.children.append(self.redis)

    def start_worker(self, number: int) -> "subprocess.Popen[bytes]":
        command = ["celery", "-A", "workers", "worker", "-P", "threads", "-c", str(THREADS)]
        command += ["--without-gossip", "--without-mingle", "-n", f"w{number}@%h"]
        return self.run.start(f"worker-{number}", *command, REDIS_URL=self.url)

    def start_collector(self) -> "subprocess.Popen[bytes]":
        arguments = ("kills", "--directory", str(self.run.directory), "--flush-s", "1")
        return self.run.start("collector", "workers.collector", *arguments, REDIS_URL=self.url)

    def start_feeder(self) -> "subprocess.Popen[bytes]":
        arguments = ("enqueue", str(self.run.path), "--yes")
        return self.run.start("feeder", "producer", *arguments, REDIS_URL=self.url)

    def status(self) -> dict:
        return self.run.status(REDIS_URL=self.url)


@pytest.fixture
def fleet(start_emulator, make_run, write_prompts) -> Iterator[Fleet]:
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", PROMPTS)))
    with tempfile.TemporaryDirectory(prefix="fleet-") as short:
        yield Fleet(run, Path(short) / "s")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def _ends_whole(fleet: Fleet, wait_for) -> None:
    """The feeder ends by itself, every prompt has one row, the money is accounted for."""
    fleet.feeder.wait(timeout=120)
    log = (fleet.run.directory / "logs" / "feeder.log").read_text()
    assert fleet.feeder.returncode == 0, log
    assert f"{PROMPTS:,} prompts read = {PROMPTS:,} done" in log
    wait_for(lambda: fleet.status()["backlog"] == 0)
    ids = [row["prompt_id"] for row in fleet.run.rows()]
    assert len(ids) == len(set(ids)), "no row twice"
    assert set(ids) == fleet.run.prompt_ids(), "no row lost"


def _bought_twice(run) -> int:
    paid = Counter(entry["messages_key"] for entry in run.emulator.billed())
    assert max(paid.values()) <= 2
    return sum(1 for times in paid.values() if times > 1)


def _in_the_middle(fleet: Fleet, wait_for) -> None:
    wait_for(lambda: fleet.run.emulator.books()["billed_requests"] > PROMPTS / 5)


def test_killed_worker_costs_at_most_what_it_had_in_flight(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """A worker of `producer run` dies with requests in flight: they alone may be paid for a
    second time, and the run ends as if nothing had been."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", PROMPTS)))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: emulator.books()["billed_requests"] > PROMPTS / 5)
    os.kill(_worker_pid(producer.pid), signal.SIGKILL)

    assert producer.wait(timeout=120) == 0
    ids = [row["prompt_id"] for row in run.rows()]
    assert len(ids) == len(set(ids)) == PROMPTS
    assert 0 < _bought_twice(run) <= THREADS
    status = run.status()
    assert status["expired"] > 0, "the claims of the dead worker were taken back"
    assert status["unconfirmed_usd"] > 0, "what it may have spent counts"


@pytest.mark.slow
def test_killed_worker_of_a_fleet_is_replaced(fleet: Fleet, wait_for) -> None:
    """Nobody tells the ledger that a worker died: its claims expire by themselves."""
    _in_the_middle(fleet, wait_for)
    _kill(fleet.workers[0])
    fleet.workers[0] = fleet.start_worker(1)
    _ends_whole(fleet, wait_for)
    assert _bought_twice(fleet.run) <= THREADS


def _worker_pid(parent: int) -> int:
    for status in Path("/proc").glob("[0-9]*/stat"):
        fields = status.read_text().rpartition(")")[2].split()
        command = (status.parent / "cmdline").read_bytes()
        if int(fields[1]) == parent and b"worker" in command:
            return int(status.parent.name)
    raise AssertionError("the producer has no worker")


def test_killed_collector_loses_and_doubles_no_row(fleet: Fleet, wait_for) -> None:
    """The collector dies while it writes, three times."""
    for _ in range(3):
        billed = fleet.run.emulator.books()["billed_requests"]
        wait_for(lambda billed=billed: fleet.run.emulator.books()["billed_requests"] > billed + 200)
        _kill(fleet.collector)
        fleet.collector = fleet.start_collector()
    _ends_whole(fleet, wait_for)
    assert _bought_twice(fleet.run) == 0


def test_killed_feeder_goes_on_where_it_was(fleet: Fleet, wait_for) -> None:
    """The feeder dies and is started again, and then runs twice at once."""
    _in_the_middle(fleet, wait_for)
    _kill(fleet.feeder)
    fleet.feeder = fleet.start_feeder()
    second = fleet.start_feeder()
    _ends_whole(fleet, wait_for)
    assert second.wait(timeout=60) == 0
    assert _bought_twice(fleet.run) == 0


def test_killed_redis_comes_back_with_everything(fleet: Fleet, wait_for) -> None:
    """Redis dies and is started again on its append-only file; all the others just go on."""
    _in_the_middle(fleet, wait_for)
    _kill(fleet.redis)
    fleet.start_redis()
    _ends_whole(fleet, wait_for)
    assert all(worker.poll() is None for worker in fleet.workers), "no worker gave up"
    assert _bought_twice(fleet.run) == 0


@pytest.mark.slow
def test_a_consumer_that_has_stopped_is_noticed_and_its_worker_replaced(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """The worker lives and answers, and takes no work: as after a lost connection to Redis. It ends
    itself, its successor goes on, and the run ends with every prompt done once."""
    emulator = start_emulator("[backend.latency]\nmean_s = 0.1")
    path = write_prompts("B1", 400)
    run = make_run(emulator, RUN.format(path=path).replace("concurrency = 80", "concurrency = 4"))
    run.environment["EAGLE_FLEET_WATCHDOG_S"] = "2"
    producer = run.start("producer", "producer", "run", str(run.path), "--yes", "--workers", "1")
    wait_for(lambda: emulator.books()["billed_requests"] > 20)
    app = make_app(f"unix://{broker.socket_path(run.directory)}")
    app.control.cancel_consumer(QUEUE)
    assert producer.wait(timeout=120) == 0, (run.directory / "logs/producer.log").read_text()
    assert "the consumer has stopped" in (run.directory / "logs/worker-1.log").read_text()
    assert "worker-1 died and is started again" in (run.directory / "logs/producer.log").read_text()
    assert emulator.books()["billed_requests"] == 400 == len(run.rows())
