"""CPU time and memory of a process and all its descendants, from `/proc` (Linux).

In: the pid of a command. Out: CPU seconds so far and peak memory, by role. A role is told by
the command line, so that Redis is not counted as the client's own work. CPU time of processes
that ended between two samples is missing here: the exact total comes from `os.wait4`.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections import defaultdict
from pathlib import Path

PERIOD_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: A role, and what its command line holds.
ROLES = {
    "valkey": "valkey-server",
    "worker": "celery",
    "collector": "workers.collector",
    "producer": "producer",
}
MAIN = "client"


def cpu_s(pid: int) -> float:
    """User and system seconds of one process, without its children."""
    return _stat(pid)[1]


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def descendants(pid: int) -> list[int]:
    """The process and everything below it that is alive."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children[_stat(int(entry.name))[0]].append(int(entry.name))
            except OSError:
                continue
    found = [pid]
    for parent in found:
        found += children[parent]
    return found


def _stat(pid: int) -> tuple[int, float]:
    """Parent, and user plus system seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS


def end(process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    """End a command and its tree: by Ctrl-C, and for certain when that takes too long."""
    if process.returncode is not None:
        return
    tree = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        for pid in reversed(tree):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


class Watch(threading.Thread):
    """Samples a process tree until it is gone or `stop` is called."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._halt = threading.Event()
        self._roles: dict[int, str] = {}
        self._cpu: dict[int, float] = {}
        #: Highest sum of resident sets seen, without and of Redis.
        self.peak_bytes = 0
        self.peak_valkey_bytes = 0
        self.start()

    def run(self) -> None:
        while not self._halt.wait(PERIOD_S):
            self.sample()

    def sample(self) -> None:
        rss: dict[str, int] = defaultdict(int)
        for pid in descendants(self._pid):
            try:
                rss[self._role(pid)] += rss_bytes(pid)
                self._cpu[pid] = cpu_s(pid)
            except OSError:
                continue
        valkey = rss.pop("valkey", 0)
        self.peak_valkey_bytes = max(self.peak_valkey_bytes, valkey)
        self.peak_bytes = max(self.peak_bytes, sum(rss.values()))

    def cpu_by_role(self) -> dict[str, float]:
        """CPU seconds up to the last sample."""
        totals: dict[str, float] = defaultdict(float)
        for pid, seconds in list(self._cpu.items()):
            totals[self._role(pid)] += seconds
        return dict(totals)

    def stop(self) -> None:
        self._halt.set()
        self.join()

    def _role(self, pid: int) -> str:
        # Not before exec: until then a child bears its parent's command line.
        role = self._roles.get(pid, MAIN)
        if role in (MAIN, "producer"):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                return role
            role = next((name for name, part in ROLES.items() if part in line), MAIN)
            self._roles[pid] = role
        return role
