"""Requests per second, CPU and memory of a client with so many requests in flight.

In: a client and a size. Out: a `Throughput`. Every client meets the same emulator, in a process
of its own, started for it, and makes the same prompts; what happened is read from the
emulator's books, not from the client. Times of responses are the emulator's.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import peers, workload
from benchmarks.measure import Watch, cpu_s, end
from benchmarks.sizes import Case
from emulator.launch import Running

FLEET = "fleet"
CLIENTS = (FLEET, "aiohttp", "openai", "curator")
SCRIPTS = {"aiohttp": "aiohttp_loop.py", "openai": "openai_loop.py", "curator": "curator.py"}
HERE = Path(__file__).parent
POLL_S = 0.02
ENDING_S = 10.0


@dataclass(frozen=True)
class Throughput:
    """What one client did. Rates are 0 where nothing was answered."""

    client: str
    in_flight: int
    prompts: int
    mean_latency_s: float
    #: Billed by the emulator, and held by the client at its end.
    billed: int
    kept: int
    #: "" or why the figures are not those of a whole run.
    trouble: str
    #: Responses per second from the first request to the last response …
    per_s: float
    #: … and in the middle: from the 20th to the 80th percentile of the responses.
    middle_per_s: float
    most_in_flight: int
    #: CPU milliseconds a request, Redis included, from the first request to the client's end.
    cpu_ms: float
    #: Highest sum of resident sets, Redis not included.
    peak_mb: float
    #: Start of the command to its end.
    wall_s: float
    #: CPU milliseconds a request by role, start of the interpreters included (fleet only).
    roles: dict[str, float] = field(default_factory=dict)
    valkey_mb: float = 0.0
    #: Share of one core that the emulator used meanwhile.
    emulator_core: float = 0.0


def measure(client: str, case: Case) -> Throughput:
    """Run one client once."""
    service = workload.service(case.mean_latency_s)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, service as host:
        folder = Path(name)
        workload.write_prompts(folder / "prompts.jsonl", case.prompts)
        command, environment = _command(client, host.url, folder, case.in_flight)
        with (folder / "log.txt").open("w") as log:
            process = subprocess.Popen(
                command,
                env=os.environ | environment,
                cwd=HERE.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            timed = _observe(process, host, case)
        kept = _kept(client, folder)
        trouble = timed.trouble
        if trouble or kept < case.prompts:
            trouble = f"{trouble} {_last_line(folder / 'log.txt')}".strip()
        return _figures(client, case, kept, trouble, timed, host)


def _command(
    client: str, url: str, folder: Path, in_flight: int
) -> tuple[list[str], dict[str, str]]:
    if client == FLEET:
        run_file = workload.write_run(folder, in_flight)
        command = [sys.executable, "-m", "producer", "run", str(run_file), "--yes"]
        environment = {"OPENROUTER_API_KEY": workload.API_KEY, "OPENROUTER_BASE_URL": url}
        return command, environment | {"REDIS_URL": ""}
    fields = folder / "fields.json"
    fields.write_text(json.dumps(workload.FIELDS))
    script = str(HERE / "clients" / SCRIPTS[client])
    arguments = [url, str(folder / "prompts.jsonl"), str(fields), str(in_flight), str(folder)]
    return [str(peers.python(client)), script, *arguments], {}


@dataclass
class _Timed:
    """What was seen of the client's processes."""

    watch: Watch
    began: float
    first_request_at: float = 0.0
    cpu_before_s: float = 0.0
    cpu_total_s: float = 0.0
    emulator_cpu_s: float = 0.0
    ended: float = 0.0
    trouble: str = ""


def _observe(process: "subprocess.Popen[bytes]", host: Running, case: Case) -> _Timed:
    limit_s = case.limit_s
    timed = _Timed(Watch(process.pid), time.time())
    try:
        while not _ended(process) and time.time() - timed.began < limit_s:
            # More than one: curator sends an empty request to look for limits.
            if host.books()["in_flight"] >= min(4, case.in_flight):
                timed.first_request_at = time.time()
                timed.watch.sample()
                timed.cpu_before_s = sum(timed.watch.cpu_by_role().values())
                timed.emulator_cpu_s = -cpu_s(host.process.pid)
                break
            time.sleep(POLL_S)
        left_s = max(0.0, limit_s - (time.time() - timed.began))
        timed.cpu_total_s = _wait(process, left_s)
        timed.trouble = "" if process.returncode == 0 else f"status {process.returncode}"
    except TimeoutError:
        timed.trouble = f"stopped after {limit_s:.0f} s"
    finally:
        end(process, patience_s=ENDING_S)
        timed.ended = time.time()
        timed.emulator_cpu_s += cpu_s(host.process.pid)
        timed.watch.stop()
    timed.cpu_total_s = timed.cpu_total_s or sum(timed.watch.cpu_by_role().values())
    return timed


def _ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether it has ended, leaving its resource usage to be waited for."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait(process: "subprocess.Popen[bytes]", limit_s: float) -> float:
    """CPU seconds of the process and of all that it waited for. TimeoutError when it goes on."""
    until = time.time() + limit_s
    while time.time() < until:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        time.sleep(POLL_S)
    raise TimeoutError


def _kept(client: str, folder: Path) -> int:
    if client == FLEET:
        files = list(folder.glob("completions/*/*.parquet"))
        return sum(pq.read_metadata(file).num_rows for file in files)
    answers = folder / "answers.json"
    return int(json.loads(answers.read_text())["answers"]) if answers.exists() else 0


def _last_line(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


def _figures(
    client: str, case: Case, kept: int, trouble: str, timed: _Timed, host: Running
) -> Throughput:
    entries = sorted(entry["time"] for entry in host.billed())
    billed = len(entries)
    roles = timed.watch.cpu_by_role() if client == FLEET else {}
    low, high = billed // 5, max(billed - 1 - billed // 5, 0)
    span_s = entries[-1] - timed.first_request_at if entries else 0.0
    return Throughput(
        client=client,
        in_flight=case.in_flight,
        prompts=case.prompts,
        mean_latency_s=case.mean_latency_s,
        billed=billed,
        kept=kept,
        trouble=trouble,
        per_s=billed / span_s if span_s > 0 else 0.0,
        middle_per_s=_rate(entries[low:high]),
        most_in_flight=int(host.books()["max_in_flight"]),
        cpu_ms=1000 * (timed.cpu_total_s - timed.cpu_before_s) / max(billed, 1),
        peak_mb=timed.watch.peak_bytes / 1e6,
        wall_s=timed.ended - timed.began,
        roles={name: 1000 * seconds / max(billed, 1) for name, seconds in roles.items()},
        valkey_mb=timed.watch.peak_valkey_bytes / 1e6,
        emulator_core=timed.emulator_cpu_s / max(timed.ended - timed.first_request_at, 0.001),
    )


def _rate(times: list[Any]) -> float:
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
