"""Real processes for the acceptance tests: an emulator with books, and runs beside it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from emulator.launch import Running, launch

API_KEY = "sk-or-v1-acceptance-0123456789abcdef"


class Run:
    """A run directory and the processes that work on it."""

    def __init__(self, directory: Path, emulator: Running, run_file: str) -> None:
        self.directory = directory
        self.emulator = emulator
        self.path = directory / "run.toml"
        directory.mkdir(parents=True, exist_ok=True)
        self.path.write_text(run_file)
        self.children: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "OPENROUTER_API_KEY": API_KEY,
            "OPENROUTER_BASE_URL": emulator.url,
        }
        self.environment.pop("REDIS_URL", None)

    def start(self, name: str, *command: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Start `python -m …`, its output in `logs/<name>.log`."""
        log = self.directory / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.children.append(child)
        return child

    def producer(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a `producer` command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "producer", *arguments],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    def status(self, **environment: str) -> dict[str, Any]:
        result = self.producer("status", str(self.path), "--json", **environment)
        assert result.returncode == 0, result.stderr
        return dict(json.loads(result.stdout))

    def rows(self) -> list[dict[str, Any]]:
        """Every row in the Parquet files."""
        table = ds.dataset(self.directory / "completions", format="parquet", partitioning="hive")
        return list(table.to_table().to_pylist())

    def prompt_ids(self) -> set[str]:
        files = sorted((self.directory / "prompts").glob("*.parquet"))
        table = ds.dataset(files, format="parquet").to_table(columns=["prompt_id"])
        return set(table.column("prompt_id").to_pylist())

    def stop(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.wait()


def wait_for(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Poll until the condition holds; fails the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.05)
    return value


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., Any]:
    return wait_for


@pytest.fixture
def start_emulator() -> Iterator[Callable[[str], Running]]:
    """Start an emulator with the given TOML."""
    with ExitStack() as running:
        yield lambda config="": running.enter_context(launch(config))


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[[Running, str], Run]]:
    """Make a run from the tables of its run file."""
    runs: list[Run] = []

    def make(emulator: Running, run_file: str) -> Run:
        runs.append(Run(tmp_path / f"run-{len(runs)}", emulator, run_file))
        return runs[-1]

    yield make
    for run in runs:
        run.stop()


@pytest.fixture
def write_prompts(tmp_path: Path) -> Callable[[str, int], Path]:
    """Write a JSONL dataset of so many different prompts."""

    def write(name: str, count: int) -> Path:
        path = tmp_path / f"{name}.jsonl"
        lines = (json.dumps({"question": f"{name}: what is {n} plus {n}?"}) for n in range(count))
        path.write_text("\n".join(lines))
        return path

    return write


@pytest.fixture
def command_lines() -> Callable[[], list[bytes]]:
    """Read the command lines of all processes but this one."""

    def read() -> list[bytes]:
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(path.read_bytes() if path.parent.name != str(os.getpid()) else b"")
            except OSError:
                continue
        return lines

    return read
