"""The collector as a process on a real Valkey, killed, starved and lied to.

Promise of every test here: an entry of the stream is one row, whatever dies and when.
"""

import base64
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
import redis

from fleet import broker
from fleet.keys import Keys
from fleet.records import Event
from workers.archive import DUPLICATE

RUN = "kimi"
STREAM = Keys(RUN).completions
#: A collector, killed before the n-th time it touches a file of the run.
KILLED_AT = """
import os, signal, sys
from workers import collector

steps = {"open", "os.rename", "os.mkdir", "os.remove", "os.truncate"}
def hook(event, arguments):
    global killed_at
    if event in steps and str(arguments[0]).startswith(directory):
        killed_at -= 1
        if killed_at == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
os.environ["REDIS_URL"] = url
sys.exit(collector.main([run, "--directory", directory, "--flush-s", "0"]))
"""
#: Forks processes that have already imported the collector, and pandas, which pyarrow looks for
#: when it first makes an array: a second or two.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["workers.collector", "pandas"])


class Valkey:
    """A server of our own that can be killed and started again on its append-only file."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "data"
        self._socket = directory / "valkey.sock"
        self.url = f"unix://{self._socket}"
        self.client: Any = redis.Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._process = broker.start(self._data, self._socket)
        until(self.answers)

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    folder = Path(tempfile.mkdtemp())  # a socket's path must be short
    server = Valkey(folder)
    yield server
    server.kill()
    shutil.rmtree(folder)


class Process:
    """A collector; what it says can be waited for."""

    def __init__(self, valkey: Valkey, directory: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "workers.collector", RUN]
        command += ["--directory", str(directory), *flags]
        environment = os.environ | {"REDIS_URL": valkey.url}
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        self.pid = self._process.pid
        self.said = ""

    def says(self, text: str) -> None:
        """Wait for a line with `text`."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said += line.decode()
            if text in line.decode():
                return
        pytest.fail(f"the collector ended without saying {text!r}:\n{self.said}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process.stderr is not None
        if not self._process.stderr.closed:
            self.said += self._process.stderr.read().decode()
            self._process.stderr.close()
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def finish(self) -> None:
        """Let it drain the stream and end."""
        self._process.terminate()
        assert self.wait() == 0, self.said


@pytest.fixture
def collector(valkey: Valkey, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts collectors on `tmp_path`; all are dead at the end."""
    started: list[Process] = []

    def start(*flags: str, directory: Path = tmp_path) -> Process:
        started.append(Process(valkey, directory, *flags))
        return started[-1]

    yield start
    for process in started:
        process.signal(signal.SIGKILL)
        process.wait()


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """Where fsync costs nothing: kill -9 does not ask for more."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else tmp_path) as folder:
        yield Path(folder)


def until(condition: Callable[[], Any]) -> None:
    """Wait for what no event tells; pytest's time limit ends it."""
    while not condition():
        time.sleep(0.01)


def entry(number: int, dataset: str = "B1", **more: Any) -> dict[str, bytes]:
    body = {
        "id": f"gen-{number}",
        "model": "m/m",
        "provider": "P",
        "choices": [{"finish_reason": "stop", "message": {"content": f"answer {number}"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.5},
    }
    fields: dict[str, Any] = {
        "kind": "completion",
        "prompt_id": f"{number:032x}",
        "dataset": dataset,
        "messages": [{"role": "user", "content": "hi"}],
        "attempts": 1,
        "latency_s": 1.5,
        "requested_at": 1.7e9,
        "completed_at": 1.7e9 + number,
        "worker": "w",
    }
    event = msgspec.convert(fields | more, Event)
    return {"m": msgspec.json.encode(event), "r": zlib.compress(json.dumps(body).encode())}


def rows(directory: Path) -> list[str]:
    """The prompt of every row in `completions/`, as a plain reader finds them."""
    paths = directory.glob("completions/dataset=*/*.parquet")
    tables = [pq.read_table(path, columns=["prompt_id"], partitioning=None) for path in paths]
    return [prompt for table in tables for prompt in table["prompt_id"].to_pylist()]


def rejects(directory: Path) -> list[dict[str, Any]]:
    paths = sorted(directory.glob("rejects/completions/*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def assert_complete(valkey: Valkey, directory: Path, completions: int) -> None:
    """Each of the prompts 0 … completions - 1 has one row, and nothing is left over."""
    found = Counter(rows(directory))
    assert {prompt: count for prompt, count in found.items() if count > 1} == {}
    assert set(found) == {f"{number:032x}" for number in range(completions)}
    assert valkey.client.xlen(STREAM) == 0
    assert list(directory.rglob(".part-*")) == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_kills_at_random_moments_lose_and_double_nothing(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """16 × kill -9 under load: one row per prompt, one reject per reject, an empty stream."""
    rng = random.Random(20261201)
    enough = threading.Event()
    added: list[str] = []

    def add() -> None:
        while not enough.is_set():
            number = len(added)
            added.append("completion" if number % 10 else "reject")
            more = {"kind": added[-1], "prompt_id": f"{number:032x}"}
            valkey.client.xadd(STREAM, entry(number, f"B{number % 3}", reason="why", **more))
            enough.wait(0.001)

    writer = threading.Thread(target=add)
    writer.start()
    in_between = 0
    try:
        for _ in range(16):
            process = collector("--flush-s", "0.02", "--flush-rows", "50")
            process.says("collecting run")
            enough.wait(rng.uniform(0, 0.4))
            process.kill()
            unfinished = list(tmp_path.rglob(".part-*"))
            in_between += bool(unfinished) or on_disk_and_in_stream(valkey, tmp_path)
    finally:
        enough.set()
        writer.join()
    last = collector()
    last.says("collecting run")
    last.finish()
    assert in_between, "no kill came between a file and its entries' deletion; test proves little"
    expected = Counter(f"{n:032x}" for n, kind in enumerate(added) if kind == "completion")
    assert Counter(rows(tmp_path)) == expected
    assert Counter(row["prompt_id"] for row in rejects(tmp_path)) == Counter(
        f"{n:032x}" for n, kind in enumerate(added) if kind == "reject"
    )
    assert valkey.client.xlen(STREAM) == 0
    assert list(tmp_path.rglob(".part-*")) == []


def on_disk_and_in_stream(valkey: Valkey, directory: Path) -> bool:
    events = [msgspec.json.decode(f[b"m"]) for _, f in valkey.client.xrange(STREAM)]
    return not {event["prompt_id"] for event in events}.isdisjoint(rows(directory))


@pytest.mark.timeout(180)
def test_a_kill_before_every_single_step_on_disk_loses_and_doubles_nothing(
    valkey: Valkey, memory_disk: Path
) -> None:
    """Killed before its first, second, … open, rename, mkdir or removal, until it gets through."""
    for step in range(1, 100):
        directory = memory_disk / str(step)
        directory.mkdir()
        fill_with_one_of_each(valkey)
        exit_code = fork_and_drain(valkey, directory, killed_at=step)
        valkey.client.xadd(STREAM, entry(6))
        assert fork_and_drain(valkey, directory) == 0
        assert_complete(valkey, directory, 7)
        reasons = Counter(row["reason"] for row in rejects(directory))
        assert reasons == {DUPLICATE: 2, "why": 1}
        assert len((directory / "rejects/unreadable.jsonl").read_bytes().splitlines()) == 1
        if exit_code == 0:
            break
        assert exit_code == -signal.SIGKILL
    assert step > 12, "the collector touches more files than that; the hook saw too little"


def fork_and_drain(valkey: Valkey, directory: Path, killed_at: int = 0) -> int | None:
    """Run a collector until the stream is empty or it has died; returns its exit code."""
    names = {"url": valkey.url, "run": RUN, "directory": str(directory), "killed_at": killed_at}
    process = FORKS.Process(target=exec, args=(KILLED_AT, names))
    process.start()
    while valkey.client.xlen(STREAM) and process.exitcode is None:
        process.join(0.01)
    process.terminate()
    process.join()
    return process.exitcode


def fill_with_one_of_each(valkey: Valkey) -> None:
    """Six completions in two datasets, a reject, duplicates in both orders, rubbish."""
    pipe = valkey.client.pipeline()
    for number in range(6):
        pipe.xadd(STREAM, entry(number, f"B{number % 2}"))
    pipe.xadd(STREAM, entry(6, kind="reject", reason="why"))
    pipe.xadd(STREAM, entry(0, "B0", worker="w2"))
    pipe.xadd(STREAM, entry(1, "B0", worker="w2"))
    pipe.xadd(STREAM, {"m": b"rubbish"})
    pipe.execute()


@pytest.mark.timeout(60)
def test_files_whose_entries_could_not_be_deleted_are_recognised(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """Killed exactly between rename and deletion: the ids in the metadata prevent second rows."""
    fill_with_one_of_each(valkey)
    valkey.client.execute_command("ACL", "SETUSER", "default", "-xdel")
    process = collector("--flush-s", "0")
    process.says("the collector waits")
    process.kill()
    assert len(rows(tmp_path)) == 6
    assert valkey.client.xlen(STREAM) == 10
    valkey.client.execute_command("ACL", "SETUSER", "default", "+xdel")
    valkey.client.xadd(STREAM, entry(6))
    process = collector()
    process.says("collecting run")
    process.finish()
    assert_complete(valkey, tmp_path, 7)
    assert Counter(row["reason"] for row in rejects(tmp_path)) == {DUPLICATE: 2, "why": 1}
    assert len((tmp_path / "rejects/unreadable.jsonl").read_bytes().splitlines()) == 1


@pytest.mark.timeout(60)
def test_a_second_collector_waits_and_takes_over(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """One at a time: the second says that it waits, and goes on when the first is killed."""
    first = collector("--flush-s", "0")
    first.says("collecting run")
    second = collector("--flush-s", "0")
    second.says("this one waits to take over")
    assert f"process {first.pid}" in second.said
    valkey.client.xadd(STREAM, entry(0))
    first.says("1 rows in 1 files")
    first.kill()
    valkey.client.xadd(STREAM, entry(1))
    second.says("1 prompts are there")
    second.finish()
    assert_complete(valkey, tmp_path, 2)


@pytest.mark.timeout(60)
def test_a_collector_that_waits_for_another_ends_when_asked(
    collector: Callable[..., Process],
) -> None:
    """SIGTERM ends the wait, with success: nothing was its to do."""
    first = collector()
    first.says("collecting run")
    second = collector()
    second.says("this one waits to take over")
    second.finish()


@pytest.mark.timeout(60)
def test_sigterm_drains_the_stream(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """What is in the stream when it is told to end is on disk when it has ended."""
    pipe = valkey.client.pipeline()
    for number in range(5000):
        pipe.xadd(STREAM, entry(number, f"B{number % 4}"))
    pipe.execute()
    process = collector()
    process.says("collecting run")
    process.finish()
    assert_complete(valkey, tmp_path, 5000)


@pytest.mark.timeout(60)
def test_rows_reach_the_disk_within_the_flush_time(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """Few entries are stored when the oldest has waited for flush_s, with no signal."""
    process = collector("--flush-s", "0.2")
    valkey.client.xadd(STREAM, entry(0))
    process.says("1 rows in 1 files")
    assert_complete(valkey, tmp_path, 1)


@pytest.mark.timeout(90)
def test_redis_may_die_and_come_back(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """An outage is said once, what was read is stored meanwhile, and the work goes on."""
    process = collector("--flush-s", "1000")
    process.says("collecting run")
    valkey.client.xadd(STREAM, entry(0))
    until(lambda: has_read(valkey))
    valkey.kill()
    process.says("Redis does not answer, the collector waits")
    assert len(rows(tmp_path)) == 1
    valkey.start()
    process.says("over after")
    valkey.client.xadd(STREAM, entry(1))
    process.finish()
    assert process.said.count("the collector waits") == 2  # its beginning and its end
    assert_complete(valkey, tmp_path, 2)


def has_read(valkey: Valkey) -> bool:
    """Whether a client waits in XREAD, having had its first reply."""
    clients = valkey.client.client_list()
    return any(client["cmd"] == "xread" and int(client["tot-cmds"]) > 6 for client in clients)


@pytest.mark.timeout(90)
def test_sigterm_while_redis_is_down_says_what_is_left(
    valkey: Valkey, collector: Callable[..., Process]
) -> None:
    """It does not claim success: entries may be left, and it says where."""
    process = collector()
    process.says("collecting run")
    valkey.kill()
    process.says("Redis does not answer, the collector waits")
    process.signal(signal.SIGTERM)
    assert process.wait() == 2
    assert "start the collector again when it is back" in process.said
    assert "Traceback" not in process.said


@pytest.mark.timeout(60)
def test_lower_ids_after_a_loss_of_data_are_new_rows(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """Redis emptied and its clock set back: nothing is skipped for its low id, and it warns."""
    now_ms = int(time.time() * 1000)
    valkey.client.xadd(STREAM, entry(0), id=f"{now_ms}-0")
    process = collector("--flush-s", "0")
    process.says("1 rows in 1 files")
    process.kill()
    valkey.client.flushall()
    valkey.client.xadd(STREAM, entry(1), id=f"{now_ms - 3_600_000}-0")
    valkey.client.xadd(STREAM, entry(0, worker="w2"), id=f"{now_ms - 3_600_000}-1")
    process = collector("--flush-s", "0")
    process.says("Redis has lost data or its clock went back")
    process.finish()
    assert_complete(valkey, tmp_path, 2)
    assert [row["reason"] for row in rejects(tmp_path)] == [DUPLICATE]


@pytest.mark.timeout(60)
def test_entries_behind_the_cursor_are_found_without_a_restart(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """Redis emptied under a running collector, with no outage to notice."""
    now_ms = int(time.time() * 1000)
    valkey.client.xadd(STREAM, entry(0), id=f"{now_ms}-0")
    process = collector("--flush-s", "0")
    process.says("1 rows in 1 files")
    valkey.client.flushall()
    valkey.client.xadd(STREAM, entry(1), id=f"{now_ms - 3_600_000}-0")
    process.says("1 rows in 1 files")
    assert_complete(valkey, tmp_path, 2)


@pytest.mark.timeout(60)
def test_rubbish_in_the_stream_is_kept_and_stops_nothing(
    valkey: Valkey, tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """Entries that cannot be read lie byte for byte in unreadable.jsonl; the others are rows."""
    rubbish: list[dict[str, bytes]] = [
        {"m": b"\xff\x00", "r": b"\x01"},
        {"r": zlib.compress(b"{}")},
        {"else": b"x"},
        {"m": entry(7)["m"], "r": b"not zlib"},
    ]
    for number, fields in enumerate(rubbish):
        valkey.client.xadd(STREAM, fields)
        valkey.client.xadd(STREAM, entry(number))
    process = collector()
    process.says("collecting run")
    process.finish()
    assert_complete(valkey, tmp_path, 4)
    lines = (tmp_path / "rejects" / "unreadable.jsonl").read_text().splitlines()
    kept = [json.loads(line)["fields_base64"] for line in lines]
    assert [unpack(fields) for fields in kept] == rubbish
    (torn,) = rejects(tmp_path)
    assert torn["prompt_id"] == f"{7:032x}" and "does not unpack" in torn["reason"]


def unpack(fields: dict[str, str]) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in fields.items()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.timeout(60)
def test_a_full_disk_is_waited_for(
    valkey: Valkey, small_disk: Path, collector: Callable[..., Process]
) -> None:
    """It says what to do, the entries stay in Redis, and it goes on when there is room."""
    process = collector("--flush-s", "0", directory=small_disk)
    process.says("collecting run")
    filler = small_disk / "filler"
    fill_up(filler)
    valkey.client.xadd(STREAM, entry(0))
    process.says("make room there")
    assert valkey.client.xlen(STREAM) == 1
    assert list(small_disk.rglob(".part-*")) == []
    filler.unlink()
    process.says("1 rows in 1 files")
    process.finish()
    assert_complete(valkey, small_disk, 1)


@pytest.mark.timeout(60)
def test_sigterm_on_a_full_disk_says_what_is_left(
    valkey: Valkey, small_disk: Path, collector: Callable[..., Process]
) -> None:
    """It ends with an error, without a traceback, and a later start completes the work."""
    process = collector("--flush-s", "0", directory=small_disk)
    process.says("collecting run")
    fill_up(small_disk / "filler")
    valkey.client.xadd(STREAM, entry(0))
    process.says("make room there")
    process.signal(signal.SIGTERM)
    assert process.wait() == 2
    assert "make room and start the collector again" in process.said
    assert "Traceback" not in process.said
    (small_disk / "filler").unlink()
    process = collector(directory=small_disk)
    process.says("collecting run")
    process.finish()
    assert_complete(valkey, small_disk, 1)


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass


@pytest.mark.timeout(60)
def test_a_damaged_part_file_is_refused_by_name(
    tmp_path: Path, collector: Callable[..., Process]
) -> None:
    """A file that cannot be read might hold rows: the collector ends and says which it is."""
    folder = tmp_path / "completions" / "dataset=B1"
    folder.mkdir(parents=True)
    (folder / "part-1-0-x.parquet").write_bytes(b"rubbish")
    process = collector()
    assert process.wait() == 2
    assert "part-1-0-x.parquet: cannot be read as a part file" in process.said
    assert "Traceback" not in process.said
