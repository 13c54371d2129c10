"""The API key goes to OpenRouter and nowhere else."""

import json

from emulator.fault_kinds import KINDS

#: A ban by Cloudflare is waited out for a minute; `test_refusals` has it.
BAN = "rate_limit_429_cloudflare"
RUN = """
[run]
name = "secrets"
model = "moonshotai/kimi-k2.5"
concurrency = 64
deadline_s = 2
max_attempts = 3
[sampling]
max_tokens = 200
[[datasets]]
name = "B1"
path = "{path}"
"""


def test_key_is_nowhere_after_a_run_with_every_fault(
    start_emulator, make_run, write_prompts, wait_for, command_lines
) -> None:
    """Every fault there is, at debug level: neither the run directory (logs, Parquet, manifest),
    nor Redis (its append-only file), nor any command line or output has it."""
    faults = [
        {"kind": kind, "rate": rate(kind), "duration_s": 4, "retry_after_s": 0.2} for kind in KINDS
    ]
    emulator = start_emulator("keepalive_s = 0.1\n[backend.latency]\nmean_s = 0.05\n")
    emulator.set_faults(*faults)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 600)))
    run.environment["EAGLE_FLEET_LOG_LEVEL"] = "debug"
    key = run.environment["OPENROUTER_API_KEY"].encode()
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")

    wait_for(lambda: emulator.books()["billed_requests"] > 100)
    assert key not in b"".join(command_lines())
    wait_for(lambda: producer.poll() is not None, timeout_s=120)
    assert producer.returncode in (0, 1)
    assert len(emulator.books()["outcomes"]) > 40, "the faults were there"

    failures = run.producer("failures", str(run.path), "--json")
    status = run.producer("status", str(run.path), "--json")
    assert json.loads(status.stdout)["errors"], "errors were counted"
    assert key.decode() not in failures.stdout + failures.stderr + status.stdout + status.stderr
    files = [path for path in run.directory.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"worker-1.log", "collector.log", "manifest.json"} <= names
    assert any(name.endswith(".aof") for name in names)
    assert [path for path in files if key in path.read_bytes()] == []


def rate(kind: str) -> float:
    """Each of those that pause the run costs a second or more."""
    return 0.0015 if kind.endswith(("_401", "_402", "_403", "_404")) else 0.004
