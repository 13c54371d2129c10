"""The embedded server: one for a run, private, and there as long as its run."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fleet import broker
from fleet.errors import LedgerUnavailable

HOLD = """
import sys
from pathlib import Path
from fleet import broker
with broker.embedded(Path(sys.argv[1]), exclusive=True) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that runs the embedded server of tmp_path."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_command_joins_the_server_that_runs(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    """`producer status` beside a run sees the run's ledger, from whatever TMPDIR."""
    url = _line(holder)
    broker.connect(url).set("there", "1")
    with broker.embedded(tmp_path) as joined:
        assert joined == url
        assert broker.connect(joined).get("there") == b"1"
    assert broker.connect(url).ping(), "it is the other's to end"


def test_a_second_run_of_one_directory_is_refused(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    """Two runs never share a server that ends with one of them; the message names the other."""
    _line(holder)
    with (
        pytest.raises(LedgerUnavailable, match=f"under way in process {holder.pid}"),
        broker.embedded(tmp_path, exclusive=True),
    ):
        raise AssertionError("it was let in")


def test_two_that_start_at_once_share_one_server(tmp_path: Path) -> None:
    """Whoever comes first runs it; there are never two on one append-only file."""
    urls, together, done = [], threading.Barrier(4), threading.Barrier(4)

    def enter() -> None:
        together.wait()
        with broker.embedded(tmp_path) as url:
            urls.append((url, broker.connect(url).info("server")["process_id"]))
            done.wait(timeout=30)

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(urls) == 4
    assert len(set(urls)) == 1


def test_a_server_that_is_killed_comes_back_with_its_data(tmp_path: Path) -> None:
    """Under kill -9 the ledger is gone for a moment, and nothing of it is lost."""
    with broker.embedded(tmp_path) as url:
        client = broker.connect(url)
        client.set("kept", "1")
        pid = client.info("server")["process_id"]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while True:
            try:
                if client.info("server")["process_id"] != pid:
                    break
            except redis.RedisError:
                assert time.monotonic() < deadline
        assert client.get("kept") == b"1"
    assert not broker._answers(url)


def test_a_folder_that_others_may_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket has no password, so only its user may reach it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        broker.socket_path(tmp_path).parent.mkdir(mode=0o755)
        with pytest.raises(LedgerUnavailable, match="others may enter"), broker.embedded(tmp_path):
            raise AssertionError("it was started")


def test_a_temporary_folder_that_is_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause is the length of TMPDIR, so that is what the message says."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 30)))
    with pytest.raises(LedgerUnavailable, match="TMPDIR"), broker.embedded(tmp_path):
        raise AssertionError("it was started")
