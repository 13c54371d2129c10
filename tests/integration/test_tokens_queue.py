"""`gpu-stage tokens --queue` with a real Valkey and a real Celery worker."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import completions_kit as kit
import pytest

from fleet import broker, run_config
from fleet.app import make_app
from fleet.errors import FleetError
from gpu_stage import claimed_file, sample_file, sending
from gpu_stage.marks import Marks
from gpu_stage.samples import samples_of
from gpu_stage.tasks import TOKENS
from gpu_stage.token_queue import tokenise_by_queue
from gpu_stage.tokenise import Outcome

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three parts."""
    run = kit.write_run(tmp_path / "run", kit.write_model(tmp_path / "model"))
    for n in range(3):
        kit.write_part(run, [kit.row(10 * n + k) for k in range(n + 1)])
    return run


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A Valkey of the test's own, since the queue's name is fixed."""
    with broker.embedded(tmp_path / "valkey") as url:
        yield url


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds on a fleet takes as little as it can."""
    monkeypatch.setattr(sending, "POLL_S", 0.05)
    monkeypatch.setattr(sending, "IDLE_S", 1.5)


@contextmanager
def worker(url: str) -> Iterator[None]:
    """A worker process of the queue `tokens`."""
    command = ["celery", "-A", "gpu_stage", "worker", "-Q", TOKENS, "-c", "1", "-P", "prefork"]
    with subprocess.Popen(
        [sys.executable, "-m", *command, "--without-gossip", "--without-mingle"],
        cwd=ROOT,
        env=os.environ | {"REDIS_URL": url},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as process:
        yield
        process.terminate()


def send(run: Path, url: str, part: Path, run_file: Path) -> None:
    """A message that nobody waits for."""
    with make_app(url) as app:
        name = str(part.relative_to(run))
        app.send_task(TOKENS, (str(run_file), name), queue=TOKENS)


def test_parts_are_made_once_by_workers(run: Path, url: str) -> None:
    """Sent twice over, each part is made once, and a second call finds all of it there."""
    config = run_config.load(run / "run.toml")
    parts = sorted(run.glob("completions/*/*.parquet"))
    for part in parts:
        send(run, url, part, config.path)
    with worker(url):
        made = tokenise_by_queue(config, url)
    assert (made.rows, made.outcomes, made.failed) == (6, {Outcome.MADE: 3}, {})
    assert [len(kit.samples(run, part)) for part in parts] == [1, 2, 3]
    assert tokenise_by_queue(config, url).outcomes == {Outcome.UP_TO_DATE: 3}


def test_lost_messages_are_sent_again(run: Path, url: str) -> None:
    """Redis may lose what it has: somebody takes a message and does nothing."""
    taken: list[object] = []
    client = broker.connect(url)
    thief = threading.Thread(target=lambda: taken.append(client.brpop([TOKENS], timeout=20)))
    thief.start()
    with worker(url):
        made = tokenise_by_queue(run_config.load(run / "run.toml"), url)
    thief.join()
    assert len(taken) == 1 and taken[0] is not None
    assert made.outcomes == {Outcome.MADE: 3}


def test_a_part_that_no_worker_can_make_is_given_up(run: Path, url: str) -> None:
    """It is named after it was sent a few times; the others are made."""
    bad = sorted(run.glob("completions/*/*.parquet"))[0]
    bad.write_bytes(b"PAR1 torn")
    with worker(url):
        made = tokenise_by_queue(run_config.load(run / "run.toml"), url)
    assert list(made.failed) == [bad] and made.outcomes == {Outcome.MADE: 2}


def test_a_worker_with_another_recipe_is_noticed(run: Path, url: str) -> None:
    """Its samples would be made again for ever: the command says so, and ends."""
    client, part = broker.connect(url), sorted(run.glob("completions/*/*.parquet"))[0]
    path = samples_of(run, part)

    def other() -> None:
        client.brpop([TOKENS], timeout=20)
        with claimed_file.claim(path) as file:
            assert file is not None
            sample_file.write(file, path, [], Marks("another recipe", ""))

    elsewhere = threading.Thread(target=other)
    elsewhere.start()
    with pytest.raises(FleetError, match="by another recipe"):
        tokenise_by_queue(run_config.load(run / "run.toml"), url)
    elsewhere.join()
