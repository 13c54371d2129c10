"""A run's counters for Prometheus: `producer metrics RUN.toml` serves them at `/metrics`.

In: the ledger. Out: metric families, made from one snapshot at each scrape; nothing is kept in
between. Counters are the ledger's own, so that a restarted exporter goes on where it was.
Labels are bounded: run, dataset, endpoint and error kind, never a prompt or a message.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from fleet.endpoint_counts import EndpointCounts, latency_bound_s
from fleet.ledger import Ledger
from fleet.snapshot import DatasetCounts, Snapshot

PREFIX = "eagle_fleet_"
Family = CounterMetricFamily | GaugeMetricFamily

#: name, help, value of a run.
RUN_GAUGES: tuple[tuple[str, str, Callable[[Snapshot], float]], ...] = (
    ("requests_in_flight", "Requests in flight.", lambda s: s.in_flight),
    ("in_flight_limit", "Most requests in flight as the pace has it now.", lambda s: s.limit),
    ("workers", "Worker processes that report.", lambda s: len(s.workers)),
    ("waiting_prompts", "Prompts that wait to be sent to the queue.", lambda s: s.waiting),
    ("delayed_prompts", "Of the waiting, those that back off.", lambda s: s.delayed),
    ("queued_prompts", "Prompts in the queue.", lambda s: s.queued),
    ("stream_backlog", "Completions that are not on disk yet.", lambda s: s.backlog),
    ("reserved_usd", "US dollars held for what is in flight.", lambda s: s.reserved_usd),
    (
        "unconfirmed_usd",
        "US dollars presumed spent on requests whose answer never came.",
        lambda s: s.unconfirmed_usd,
    ),
    ("cap_usd", "Most US dollars that the run may cost; 0: no cap.", lambda s: s.cap_usd),
    ("cap_reached", "1 when the cap leaves no room for one more answer.", lambda s: s.cap_reached),
    ("breaker_open", "1 when every allowed endpoint's circuit is open.", lambda s: s.breaker_open),
)
RUN_COUNTERS: tuple[tuple[str, str, Callable[[Snapshot], float]], ...] = (
    ("spent_usd", "US dollars billed, by what the answers say.", lambda s: s.spent_usd),
    ("duplicate_answers", "Answers of prompts that had one.", lambda s: s.duplicates),
    ("expired_claims", "Claims whose worker did not come back.", lambda s: s.expired),
    ("rejected_answers", "Answers that were refused.", lambda s: s.rejected),
)
DATASET_GAUGES: tuple[tuple[str, str, Callable[[DatasetCounts], float]], ...] = (
    ("prompts", "Prompts of the dataset.", lambda d: d.prompts),
    ("failed_prompts", "Prompts in the dead letters.", lambda d: d.failed),
    ("budget_tokens", "Completion tokens to buy; 0: no budget.", lambda d: d.budget_tokens),
)
DATASET_COUNTERS: tuple[tuple[str, str, Callable[[DatasetCounts], float]], ...] = (
    ("completions", "Prompts completed.", lambda d: d.done),
    ("completion_tokens", "Completion tokens bought.", lambda d: d.tokens),
    ("prompt_tokens", "Prompt tokens billed.", lambda d: d.prompt_tokens),
    ("truncated_completions", "Completions cut off at max_tokens.", lambda d: d.truncated),
    ("dataset_spent_usd", "US dollars billed for the dataset.", lambda d: d.spent_usd),
)
ENDPOINT_GAUGES: tuple[tuple[str, str, Callable[[EndpointCounts], float]], ...] = (
    ("endpoint_allowed", "1 when the endpoint may be asked.", lambda e: e.allowed),
    ("endpoint_circuit_open", "1 when at most probes are sent.", lambda e: e.circuit_open),
    ("endpoint_requests_in_flight", "Requests in flight there.", lambda e: e.in_flight),
    ("endpoint_in_flight_limit", "Most requests in flight there.", lambda e: e.limit),
)
ENDPOINT_COUNTERS: tuple[tuple[str, str, Callable[[EndpointCounts], float]], ...] = (
    ("endpoint_requests", "Requests sent there.", lambda e: e.asked),
    ("endpoint_completions", "Completions that came from there.", lambda e: e.done),
    ("endpoint_throttles", "Answers with 429.", lambda e: e.throttles),
    ("endpoint_failures", "Other answers that were no completion.", lambda e: e.failures),
    ("endpoint_wrong_provider", "Answers of a provider not asked.", lambda e: e.wrong),
    ("endpoint_completion_tokens", "Completion tokens from there.", lambda e: e.tokens),
    ("endpoint_spent_usd", "US dollars billed by the endpoint.", lambda e: e.spent_usd),
)


def run_metrics(run: str, snapshot: Snapshot) -> Iterator[Metric]:
    """Every family of one run, from one snapshot."""
    yield from _families(GaugeMetricFamily, RUN_GAUGES, {run: snapshot}, ["run"])
    yield from _families(CounterMetricFamily, RUN_COUNTERS, {run: snapshot}, ["run"])
    yield from _paused(run, snapshot)
    yield from _balance(run, snapshot)
    yield _errors(run, snapshot)
    datasets = {d.name: d for d in snapshot.datasets}
    yield from _families(GaugeMetricFamily, DATASET_GAUGES, datasets, ["run", "dataset"], run)
    yield from _families(CounterMetricFamily, DATASET_COUNTERS, datasets, ["run", "dataset"], run)
    endpoints = {e.tag: e for e in snapshot.endpoints}
    yield from _families(GaugeMetricFamily, ENDPOINT_GAUGES, endpoints, ["run", "endpoint"], run)
    yield from _families(
        CounterMetricFamily, ENDPOINT_COUNTERS, endpoints, ["run", "endpoint"], run
    )
    yield _latency(run, snapshot.endpoints)


def _families(
    kind: Callable[..., Family],
    table: Iterable[tuple[str, str, Callable[[Any], float]]],
    things: dict[str, Any],
    labels: list[str],
    run: str | None = None,
) -> Iterator[Family]:
    """A family for each line of a table, with a sample for each thing."""
    for name, help_text, value in table:
        family = kind(PREFIX + name, help_text, labels=labels)
        for label, thing in things.items():
            family.add_metric([label] if run is None else [run, label], float(value(thing)))
        yield family


def _paused(run: str, snapshot: Snapshot) -> Iterator[Metric]:
    family = GaugeMetricFamily(PREFIX + "paused", "1 while paused.", labels=["run", "kind"])
    paused = snapshot.paused
    family.add_metric([run, paused["kind"] if paused else ""], float(paused is not None))
    yield family


def _balance(run: str, snapshot: Snapshot) -> Iterator[Metric]:
    """Nothing is said of an account that says nothing."""
    left = snapshot.balance["remaining_usd"] if snapshot.balance else None
    if left is not None:
        family = GaugeMetricFamily(PREFIX + "balance_usd", "US dollars left.", labels=["run"])
        family.add_metric([run], left)
        yield family


def _errors(run: str, snapshot: Snapshot) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "failed_attempts", "Requests that failed.", labels=["run", "kind"]
    )
    for kind, count in snapshot.errors.items():
        family.add_metric([run, kind], count)
    return family


def _latency(run: str, endpoints: Iterable[EndpointCounts]) -> Metric:
    family = HistogramMetricFamily(
        PREFIX + "request_duration_seconds",
        "From sending a request to the last byte of its completion.",
        labels=["run", "endpoint"],
    )
    for endpoint in endpoints:
        buckets, total = [], 0
        for latency_class, count in sorted(endpoint.latency_classes.items()):
            total += count
            buckets.append((f"{latency_bound_s(latency_class):.6g}", float(total)))
        buckets.append(("+Inf", float(total)))
        seconds = endpoint.latency_mean_s * endpoint.done
        family.add_metric([run, endpoint.tag], buckets, seconds)
    return family


class RunCollector(Collector):
    """Reads the ledger whenever Prometheus asks."""

    def __init__(self, run: str, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """`eagle_fleet_up` alone when Redis does not answer."""
        up = GaugeMetricFamily(PREFIX + "up", "1 when Redis answers.", labels=["run"])
        try:
            families = list(run_metrics(self._run, self._ledger.snapshot()))
            families += _memory(self._run, self._ledger)
        except redis.RedisError:
            families = []
        up.add_metric([self._run], float(bool(families)))
        yield from [up, *families]


def _memory(run: str, ledger: Ledger) -> Iterator[Metric]:
    used, most = ledger.memory_bytes()
    for name, help_text, value in (
        ("redis_memory_bytes", "Bytes that Redis uses.", used),
        ("redis_memory_limit_bytes", "Bytes that Redis may use; 0: no limit.", most),
    ):
        family = GaugeMetricFamily(PREFIX + name, help_text, labels=["run"])
        family.add_metric([run], float(value))
        yield family


@contextmanager
def serve(run: str, ledger: Ledger, address: str, port: int) -> Iterator[str]:
    """Serve `/metrics` for the time of a `with` block; its URL. Port 0 takes a free one."""
    registry = CollectorRegistry()
    registry.register(RunCollector(run, ledger))
    server, thread = start_http_server(port, address, registry)
    try:
        yield f"http://{address}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
