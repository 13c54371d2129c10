"""The processes of a run on one machine: workers, collector, emulator.

Invariant: each ends when this process does, however it ends, and by its pid alone.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import fleet
from fleet.errors import FleetError
from fleet.ledger import Ledger
from fleet.process import end_with_parent
from fleet.run_config import RunConfig

log = logging.getLogger(__name__)

POLL_S = 0.05
#: A child that dies so often in a row, each time so soon, is not started again.
QUICK_DEATHS = 3
QUICK_DEATH_S = 10.0


class Child:
    """A child process that writes its output to a log file."""

    def __init__(
        self, name: str, command: Sequence[str], environment: dict[str, str], log_file: Path
    ) -> None:
        self.name = name
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**os.environ, "PYTHONPATH": our_code(), **environment},
                # Python looks for modules where it is started: not where the user happens to be,
                # whose folder `tokens` or `workers` would be taken for ours.
                cwd=log_file.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=end_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raises: FleetError, when the process has ended by itself."""
        if not self.running():
            raise FleetError(
                f"{self.name} ended with status {self._process.returncode}; see {self.log_file}"
            )

    def terminate(self) -> None:
        if self.running():
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        if self.running():
            self._process.kill()
        self._process.wait()


def our_code() -> str:
    """So that a child runs the code that this process runs."""
    ours = str(Path(fleet.__file__).parents[1])
    return os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")]))


class Workforce:
    """Workers and collector of one run; a worker that dies is started again."""

    def __init__(
        self, config: RunConfig, ledger: Ledger, workers: int, environment: dict[str, str]
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._environment = environment
        self._threads = -(-config.run.concurrency // workers)
        self._started_at: dict[str, float] = {}
        self._quick_deaths: dict[str, int] = {}
        self.workers = [self._worker(number) for number in range(1, workers + 1)]
        self.collector = self._collector()

    def supervise(self) -> None:
        """Start again what has died. Raises: FleetError, when it keeps dying at once."""
        for number, worker in enumerate(self.workers, start=1):
            if not worker.running():
                self._restart_or_raise(worker)
                # It is known to be dead, so its prompts need not wait for their claims to expire.
                self._ledger.bury(f"{socket.gethostname()}:{worker.pid}:")
                self.workers[number - 1] = self._worker(number)
        if not self.collector.running():
            self._restart_or_raise(self.collector)
            self.collector = self._collector()

    def dismiss(self) -> None:
        """Ask the workers to end when the requests in flight are done."""
        for worker in self.workers:
            worker.terminate()

    def working(self) -> bool:
        """Whether a worker is still there."""
        return any(worker.running() for worker in self.workers)

    def drain(self, hurry: Callable[[], bool]) -> None:
        """End the workers, then the collector once all is on disk; kill them when in a hurry."""
        self.dismiss()
        while self.working() and not hurry():
            time.sleep(POLL_S)
        self.collector.terminate()
        while self.collector.running() and not hurry():
            time.sleep(POLL_S)
        self.kill()

    def kill(self) -> None:
        for child in (*self.workers, self.collector):
            child.kill()

    def _restart_or_raise(self, child: Child) -> None:
        quick = time.monotonic() - self._started_at[child.name] < QUICK_DEATH_S
        self._quick_deaths[child.name] = quick * (self._quick_deaths.get(child.name, 0) + 1)
        if self._quick_deaths[child.name] >= QUICK_DEATHS:
            child.check()
        log.warning("%s died and is started again; see %s", child.name, child.log_file)

    def _start(self, name: str, command: Sequence[str]) -> Child:
        self._started_at[name] = time.monotonic()
        return Child(name, command, self._environment, self._config.directory / f"logs/{name}.log")

    def _worker(self, number: int) -> Child:
        command = ["celery", "-A", "workers", "worker", "-P", "threads", "-c", str(self._threads)]
        command += ["--without-gossip", "--without-mingle", "-n", f"worker-{number}@%h"]
        return self._start(f"worker-{number}", command)

    def _collector(self) -> Child:
        directory = str(self._config.directory.resolve())
        command = ["workers.collector", self._config.run.name, "--directory", directory]
        return self._start("collector", command)
