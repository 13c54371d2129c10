"""`producer metrics`: the ledger's counters as Prometheus reads them."""

import os
import shutil
import signal
import subprocess
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

CONFIG = """
seed = 3
balance_usd = 5.0
[backend.latency]
mean_s = 0.1
[[faults]]
kind = "server_500"
rate = 0.1
[[endpoints]]
tag = "chutes/int4"
provider_name = "Chutes"
quantization = "int4"
"""
RUN = """
[run]
name = "counted"
model = "moonshotai/kimi-k2.5"
concurrency = 16
cap_usd = 2.0
[sampling]
max_tokens = 300
[providers]
quantizations = ["int4"]
"""


@pytest.fixture
def scraped(start_emulator, make_run, write_prompts, wait_for):
    """A finished run, its emulator, and what its exporter says."""
    emulator = start_emulator(CONFIG)
    path = write_prompts("B1", 60)
    run = make_run(emulator, RUN + f'[[datasets]]\nname = "B1"\npath = "{path}"\n')
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    exporter = run.start("metrics", "producer", "metrics", str(run.path), "--port", "0")
    log = run.directory / "logs" / "metrics.log"
    wait_for(lambda: "/metrics" in log.read_text())
    url = log.read_text().split()[-1]
    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    exporter.send_signal(signal.SIGTERM)
    assert exporter.wait(20) == 0
    return run, emulator, text


def test_the_exporter_says_what_the_books_say(scraped) -> None:
    """Counts, tokens, money, errors, latency: by run, dataset, endpoint and kind of error."""
    run, emulator, text = scraped
    found = {
        (sample.name.removeprefix("eagle_fleet_"), frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    def said(name: str, *labels: str) -> float:
        return found[name, frozenset({"counted", *labels})]

    books = emulator.books()
    assert said("up") == 1
    assert said("completions_total", "B1") == 60 == books["billed_requests"]
    tokens = sum(row["completion_tokens"] for row in run.rows())
    assert said("completion_tokens_total", "B1") == tokens
    assert said("spent_usd_total") == pytest.approx(float(books["total_usd"]))
    assert said("cap_usd") == 2
    assert said("balance_usd") == pytest.approx(5, abs=float(books["total_usd"]))
    assert said("endpoint_completions_total", "chutes/int4") == 60
    failed = said("endpoint_failures_total", "chutes/int4")
    assert failed == said("failed_attempts_total", "server failed") > 0
    assert said("request_duration_seconds_bucket", "chutes/int4", "+Inf") == 60
    assert said("request_duration_seconds_count", "chutes/int4") == 60
    assert said("redis_memory_bytes") > 0
    assert all(run.prompt_ids().isdisjoint(labels) for _, labels in found), "labels are bounded"


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (Debian: prometheus)")
def test_promtool_finds_no_fault_with_the_names(scraped) -> None:
    """Units, suffixes and help as Prometheus wants them."""
    check = ["promtool", "check", "metrics"]
    result = subprocess.run(
        check, input=scraped[2], text=True, capture_output=True, env=os.environ, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
