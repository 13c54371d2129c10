"""`gpu-stage extract` as a process: by workers of a real Celery queue, and killed at any moment."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hidden_kit as kit
import pytest
from celery.events.state import State
from rich.console import Console

from fleet import broker
from fleet.app import make_app
from fleet.work_claims import claim_work, claimed_work
from gpu_stage import sending
from gpu_stage.extract_command import Wishes, work_for
from gpu_stage.hidden import order as orders
from gpu_stage.hidden.cut import Work
from gpu_stage.hidden.extract_queue import extract_by_queue
from gpu_stage.hidden.inspect import summary
from gpu_stage.hidden.make import Outcome
from gpu_stage.tasks import EXTRACT, GPU

ROOT = Path(__file__).parents[2]
QUIET = Console(quiet=True)
#: About 100 tokens.
SHARD = str(100 * 4 * kit.HIDDEN * 2)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A Valkey of the test's own, since the queue's name is fixed."""
    with broker.embedded(tmp_path / "valkey") as url:
        yield url


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama."""
    return kit.write_target(tmp_path_factory.mktemp("target") / "llama", "llama")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds on a fleet takes as little as it can."""
    monkeypatch.setattr(sending, "POLL_S", 0.05)
    monkeypatch.setattr(sending, "IDLE_S", 5.0)


def work(run: Path, target: Path) -> Work:
    """All of a run, in small shards."""
    found = work_for(
        Wishes(run, None, target, "resident", "bf16", "", SHARD, 64, device="cpu", spool="0")
    )
    orders.keep(found.folder, found.order)
    return found


@contextmanager
def worker(url: str) -> Iterator[None]:
    """A worker process of the queue `gpu`, with events."""
    command = ["celery", "-A", "gpu_stage", "worker", "-Q", GPU, "-P", "solo", "-E"]
    with subprocess.Popen(
        [sys.executable, "-m", *command, "--without-gossip", "--without-mingle"],
        cwd=ROOT,
        env=os.environ | {"REDIS_URL": url},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as process:
        yield
        process.kill()


def test_shards_are_made_once_by_a_worker(tmp_path: Path, target: Path, url: str) -> None:
    """Sent twice over, each is made once; Flower sees how far a task is; a shard that another
    worker has claimed on the ledger is left to it, however often its message comes."""
    todo = work(kit.write_run(tmp_path / "run", [40] * 12, 6), target)
    names = [piece.name for piece in todo.pieces]
    client, state = broker.connect(url), State()
    told = threading.Event()

    def seen(event: dict[str, object]) -> None:
        state.event(event)
        if event["type"] == "task-progress":
            told.set()

    with make_app(url) as app, claim_work(client, str(todo.folder), names[0]) as mine:
        assert mine is not None
        for name in names:
            app.send_task(EXTRACT, (str(todo.folder), name), queue=GPU)
        with watched(url, seen), worker(url):
            others = [todo.path(piece) for piece in todo.pieces[1:]]
            wait(lambda: all(todo.made(piece) for piece in todo.pieces[1:]))
            assert told.wait(30)
            inodes = {path: path.stat().st_ino for path in others}
            assert not todo.path(todo.pieces[0]).exists()
            app.send_task(EXTRACT, (str(todo.folder), names[0]), queue=GPU)
            wait(lambda: client.llen(GPU) == 0)
            assert mine.held() and not todo.path(todo.pieces[0]).exists()
            release(mine)
            made = extract_by_queue(todo, url, QUIET)
    assert (made.outcomes[Outcome.MADE], made.failed) == (1, {})
    assert {path: path.stat().st_ino for path in others} == inodes
    assert summary(todo.folder, check=True)["shards"] == len(names)
    progress = [task for task in state.tasks.values() if getattr(task, "tokens_s", None)]
    assert progress and progress[0].state in ("PROGRESS", "SUCCESS")


def release(claim: object) -> None:
    """Let go of a claim before its block ends."""
    claim._lock.release()  # type: ignore[attr-defined]


@contextmanager
def watched(url: str, seen: Callable[[dict[str, object]], None]) -> Iterator[None]:
    """Celery's events, given to `seen` as they come."""
    over = threading.Event()

    def listen() -> None:
        with make_app(url) as app, app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": seen})
            while not over.is_set():
                try:
                    receiver.capture(limit=None, timeout=0.5, wakeup=False)
                except TimeoutError:
                    continue

    thread = threading.Thread(target=listen)
    thread.start()
    yield
    over.set()
    thread.join()


def wait(there: Callable[[], bool], at_most_s: float = 60) -> None:
    end = time.monotonic() + at_most_s
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_claim_of_a_worker_that_died_runs_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it lives the claim is kept alive beyond its lease; afterwards it ends by itself."""
    monkeypatch.setattr("fleet.work_claims.LEASE_S", 0.6)
    monkeypatch.setattr("fleet.work_claims.RENEW_S", 0.1)
    client = broker.connect(url)
    with claim_work(client, "folder", "shard") as claim:
        time.sleep(1.0)  # longer than the lease: that is what is tested
        assert claim is not None and claim.held()
        with claim_work(client, "folder", "shard") as second:
            assert second is None
    assert not claimed_work(client, "folder", "shard")
    code = (
        "import os, sys; from fleet import broker, work_claims as w; w.LEASE_S = 0.6\n"
        "c = w.claim_work(broker.connect(sys.argv[1]), 'folder', 'shard')\n"
        "assert c.__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, url], cwd=ROOT, check=False)
    wait(lambda: not claimed_work(client, "folder", "shard"), 5)


def test_killed_anywhere_no_shard_is_missing_doubled_or_half(tmp_path: Path, target: Path) -> None:
    """kill -9 as shards appear, twice; what is left at last is what one quiet run makes."""
    run = kit.write_run(tmp_path / "run", [90] * 200, 50)
    todo = work(run, target)
    command = [sys.executable, "-m", "gpu_stage", "extract", str(run), "--target", str(target)]
    command += ["--shard-size", SHARD, "--pack-tokens", "64", "--device", "cpu", "--json"]
    for more in (3, 50):
        before = len(made(todo))
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            wait(lambda more=more, before=before: len(made(todo)) >= before + more)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
    assert len(made(todo)) < len(todo.pieces)
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert told["shards"]["made"] + told["shards"]["up to date"] == len(todo.pieces)
    found = summary(todo.folder, check=True)
    assert (found["shards"], found["samples"], found["tokens"]) == (len(todo.pieces), 200, 18_000)
    assert list(todo.folder.rglob(".*.tmp")) == []


def made(todo: Work) -> list[Path]:
    return list(todo.folder.rglob("part-*.json"))
