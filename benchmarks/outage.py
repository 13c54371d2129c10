"""An endpoint goes down in the middle of a run: what becomes of the throughput.

Three endpoints, 120 requests in flight. After a while the one that serves most answers 429 to
everything, then serves again. Once for each way of sharing requests out, and for the openai
client with that endpoint pinned by hand. Rates are read from the emulator's books.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers, workload
from benchmarks.measure import end
from benchmarks.throughput import HERE, SCRIPTS
from emulator.launch import Running, launch

DOWN = "chutes/int4"
IN_FLIGHT = 120
MEAN_LATENCY_S = 1.0
POLL_S = 0.05
ENDPOINTS = "".join(
    f"""
[[endpoints]]
tag = "{tag}"
provider_name = "{name}"
quantization = "int4"
completion_usd_per_m = {price}
"""
    for tag, name, price in (
        (DOWN, "Chutes", 2.0),
        ("inceptron/int4", "Inceptron", 2.2),
        ("parasail/int4", "Parasail", 2.4),
    )
)


@dataclass(frozen=True)
class Outage:
    """One run through the outage. Rates in answers a second."""

    client: str
    before_per_s: float
    #: From a second after the beginning of the outage to its end.
    during_per_s: float
    after_per_s: float
    #: Requests that the endpoint refused.
    refused: int
    #: Seconds from the end of the outage until it serves its part again; 0: it did not.
    regained_s: float


def measure(phase_s: float) -> dict[str, Any]:
    """Each client through three phases of `phase_s` seconds."""
    clients = ("cheapest", "spread", "openrouter", "openai")
    measured = [asdict(_measure(client, phase_s)) for client in clients]
    return {"in_flight": IN_FLIGHT, "seconds": phase_s, "clients": measured}


def _measure(client: str, phase_s: float) -> Outage:
    config = workload.emulator(MEAN_LATENCY_S) + ENDPOINTS
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        launch(config, stderr=subprocess.DEVNULL) as host,
    ):
        folder = Path(name)
        workload.write_prompts(folder / "prompts.jsonl", int(IN_FLIGHT * 5 * phase_s))
        with (folder / "log.txt").open("w") as log:
            process = _start(client, folder, host, log.fileno())
        try:
            return _phases(client, host, phase_s)
        finally:
            end(process, patience_s=0)


def _start(client: str, folder: Path, host: Running, log: int) -> "subprocess.Popen[bytes]":
    environment = {"OPENROUTER_API_KEY": workload.API_KEY, "OPENROUTER_BASE_URL": host.url}
    if client == "openai":
        fields = folder / "fields.json"
        pinned = {"only": [DOWN], "allow_fallbacks": False}
        fields.write_text(json.dumps(workload.FIELDS | {"provider": pinned}))
        arguments = [host.url, str(folder / "prompts.jsonl"), str(fields), str(IN_FLIGHT)]
        script = str(HERE / "clients" / SCRIPTS["openai"])
        command = [str(peers.python("openai")), script, *arguments, str(folder)]
    else:
        path = workload.write_run(folder, IN_FLIGHT)
        path.write_text(path.read_text() + f'\n[providers]\nrouting = "{client}"\n')
        command = [sys.executable, "-m", "producer", "run", str(path), "--yes"]
    return subprocess.Popen(
        command,
        env=os.environ | environment | {"REDIS_URL": ""},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _phases(client: str, host: Running, phase_s: float) -> Outage:
    while len(host.billed()) < 3 * IN_FLIGHT:  # under way
        time.sleep(POLL_S)
    before = _rate(host, phase_s)
    host.set_faults({"kind": "rate_limit_429", "endpoint": DOWN, "retry_after_s": 1})
    time.sleep(1)
    during = _rate(host, phase_s - 1)
    refused = int(host.books()["outcomes"].get("rate_limit_429", 0))
    served = len(host.billed())
    host.set_faults()
    began = time.time()
    regained = 0.0
    while not regained and time.time() - began < phase_s:
        time.sleep(POLL_S)
        entries = host.billed(since=served)
        mine = [entry["time"] for entry in entries if entry["endpoint"] == DOWN]
        recent = [entry for entry in entries if entry["time"] > time.time() - 1]
        if recent and sum(e["endpoint"] == DOWN for e in recent) / len(recent) > _part(client):
            regained = mine[-1] - began
    return Outage(client, before, during, _rate(host, phase_s / 2), refused, regained)


def _part(client: str) -> float:
    """Three quarters of the part that the endpoint has when all is well."""
    return {"cheapest": 0.95, "openai": 1.0}.get(client, 0.39) * 0.75


def _rate(host: Running, seconds: float) -> float:
    before = len(host.billed())
    time.sleep(seconds)
    return (len(host.billed()) - before) / seconds
