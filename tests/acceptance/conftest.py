"""Real processes for the acceptance tests: an emulator with books, and runs beside it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import requests

API_KEY = "sk-or-v1-acceptance-0123456789abcdef"
ENDPOINTS = """
[[endpoints]]
tag = "chutes/int4"
provider_name = "Chutes"
quantization = "int4"
prompt_usd_per_m = 0.44
completion_usd_per_m = 2.00
[[endpoints]]
tag = "inceptron/int4"
provider_name = "Inceptron"
quantization = "int4"
prompt_usd_per_m = 0.44
completion_usd_per_m = 2.20
[[endpoints]]
tag = "fireworks"
provider_name = "Fireworks"
quantization = "nvfp4"
prompt_usd_per_m = 0.10
completion_usd_per_m = 0.50
"""


class Emulator:
    """A running emulator and its books."""

    def __init__(self, directory: Path, config: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "emulator.toml").write_text(config + ENDPOINTS)
        ready = directory / "url"
        self._log = (directory / "emulator.log").open("wb")
        command = ["--config", str(directory / "emulator.toml"), "--ready-file", str(ready)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "emulator", *command], stdout=self._log, stderr=self._log
        )
        wait_for(lambda: ready.exists() or self.process.poll() is not None)
        self.url = ready.read_text().strip()
        self.control = self.url.removesuffix("/api/v1") + "/emulator"

    def books(self) -> dict[str, Any]:
        return dict(requests.get(f"{self.control}/books", timeout=10).json())

    def billed(self) -> list[dict[str, Any]]:
        return list(requests.get(f"{self.control}/books/requests", timeout=10).json())

    def set_faults(self, faults: list[dict[str, Any]]) -> None:
        requests.post(f"{self.control}/faults", json=faults, timeout=10).raise_for_status()

    def top_up(self, usd: float) -> None:
        requests.post(f"{self.control}/topup", json={"usd": usd}, timeout=10).raise_for_status()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._log.close()


class Run:
    """A run directory and the processes that work on it."""

    def __init__(self, directory: Path, emulator: Emulator, run_file: str) -> None:
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
def start_emulator(tmp_path: Path) -> Iterator[Callable[[str], Emulator]]:
    """Start an emulator with the given TOML before its endpoints."""
    running: list[Emulator] = []

    def start(config: str = "") -> Emulator:
        running.append(Emulator(tmp_path / f"emulator-{len(running)}", config))
        return running[-1]

    yield start
    for emulator in running:
        emulator.stop()


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[[Emulator, str], Run]]:
    """Make a run from the tables of its run file."""
    runs: list[Run] = []

    def make(emulator: Emulator, run_file: str) -> Run:
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
