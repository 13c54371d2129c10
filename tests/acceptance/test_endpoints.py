"""Endpoints that fail, lie or go away in the middle of a run: the load moves, and comes back."""

import json
import signal
import time

import pytest

from gpu_stage.recipe import allowed_providers

CONFIG = """
seed = 5
keepalive_s = 0.2
[backend.latency]
kind = "exponential"
mean_s = 0.3
max_s = 1.5
[backend.completion]
mean_tokens = 60
[[endpoints]]
tag = "chutes/int4"
provider_name = "Chutes"
quantization = "int4"
completion_usd_per_m = 2.0
[[endpoints]]
tag = "inceptron/int4"
provider_name = "Inceptron"
quantization = "int4"
completion_usd_per_m = 2.2
[[endpoints]]
tag = "parasail/int4"
provider_name = "Parasail"
quantization = "int4"
completion_usd_per_m = 2.4
[[endpoints]]
tag = "fireworks"
provider_name = "Fireworks"
quantization = "nvfp4"
"""
RUN = """
[run]
name = "endpoints"
model = "moonshotai/kimi-k2.5"
concurrency = 60
deadline_s = 10
[sampling]
max_tokens = 300
[providers]
quantizations = ["int4"]
routing = "{routing}"
[[datasets]]
name = "B1"
path = "{path}"
"""


def stopped(run, producer) -> list[dict]:
    """Ctrl-C: what is in flight is finished; every billed answer is a row."""
    producer.send_signal(signal.SIGINT)
    producer.wait(timeout=60)
    rows = run.rows()
    assert len(rows) == sum(served(run.emulator).values())
    return rows


INT4 = {"chutes/int4", "inceptron/int4", "parasail/int4"}


def served(emulator) -> dict[str, int]:
    """Answers billed so far, by endpoint."""
    return {tag: row["billed_requests"] for tag, row in emulator.books()["endpoints"].items()}


def endpoint(status, tag: str):
    return next(e for e in status["endpoints"] if e["tag"] == tag)


@pytest.mark.parametrize(
    "kind", ["rate_limit_429", pytest.param("unavailable_503", marks=pytest.mark.slow)]
)
def test_an_endpoint_that_refuses_loses_its_traffic_and_regains_it(
    start_emulator, make_run, write_prompts, wait_for, kind
) -> None:
    """The dearer ones take over at once, few requests are wasted, no prompt suffers, and when it
    serves again it has its part again."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 6000), routing="cheapest"))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: served(emulator).get("chutes/int4", 0) > 500)

    emulator.set_faults({"kind": kind, "endpoint": "chutes/int4", "retry_after_s": 1})
    before = sum(served(emulator).values())
    wait_for(lambda: sum(served(emulator).values()) > before + 1500)
    refused = emulator.books()["endpoints"]["chutes/int4"]["outcomes"][kind]
    assert refused < 100, "of some 1,500 requests that it would have got"

    emulator.set_faults()
    at_chutes = served(emulator)["chutes/int4"]
    wait_for(lambda: served(emulator)["chutes/int4"] > at_chutes + 500)
    stopped(run, producer)
    assert run.producer("failures", str(run.path)).stdout == "", "no prompt suffered"
    chutes = endpoint(run.status(), "chutes/int4")
    assert chutes["throttles"] + chutes["failures"] == refused
    assert chutes["done"] == served(emulator)["chutes/int4"]


def test_the_cheapest_serves_most_and_the_others_their_share(
    start_emulator, make_run, write_prompts
) -> None:
    """Each request is pinned to one endpoint, and what each served is on the ledger and in the
    rows; an endpoint that the policy excludes is never asked."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 1000), routing="cheapest"))
    result = run.producer("run", str(run.path), "--yes")
    assert result.returncode == 0, result.stderr
    counts = served(emulator)
    assert set(counts) == INT4
    assert counts["chutes/int4"] > 900
    assert min(counts.values()) >= 20
    rows = run.rows()
    assert {tag: sum(r["endpoint"] == tag for r in rows) for tag in INT4} == counts
    for told in run.status()["endpoints"]:
        if told["allowed"]:
            books = emulator.books()["endpoints"][told["tag"]]
            assert told["done"] == books["billed_requests"]
            assert told["tokens"] == books["completion_tokens"]
            assert told["spent_usd"] == pytest.approx(float(books["cost_usd"]), abs=1e-9)


def test_openrouter_may_do_the_balancing(start_emulator, make_run, write_prompts) -> None:
    """`routing = "openrouter"`: the allowed endpoints are named, OpenRouter chooses among them,
    and what served is booked on the endpoint that the answer names."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 600), routing="openrouter"))
    result = run.producer("run", str(run.path), "--yes")
    assert result.returncode == 0, result.stderr
    counts = served(emulator)
    assert set(counts) == INT4
    assert min(counts.values()) > 100, "by inverse square of price"
    told = {e["tag"]: e["done"] for e in run.status()["endpoints"] if e["done"]}
    assert told == counts
    assert {row["endpoint"] for row in run.rows()} == {"openrouter"}


def test_an_answer_of_an_excluded_provider_never_reaches_the_data(
    start_emulator, make_run, write_prompts
) -> None:
    """One endpoint lets another provider answer: rejected, counted, shown, bought elsewhere; and
    after a few of these, which are paid for, it is left."""
    emulator = start_emulator(CONFIG)
    emulator.change_endpoint("chutes/int4", honesty={"wrong_provider": "Fireworks"})
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 800), routing="cheapest"))
    result = run.producer("run", str(run.path), "--yes")
    assert result.returncode == 0, result.stderr
    rows = run.rows()
    assert len(rows) == 800
    assert {row["provider"] for row in rows} == {"Inceptron", "Parasail"}
    status = run.status()
    chutes = endpoint(status, "chutes/int4")
    assert chutes["done"] == 0
    assert chutes["wrong"] == served(emulator)["chutes/int4"] == status["rejected"]
    assert chutes["wrong"] < 150
    assert "Fireworks" in chutes["last_error"]
    assert "wrong provider" in run.producer("status", str(run.path)).stdout
    assert status["spent_usd"] == pytest.approx(float(emulator.books()["total_usd"]), abs=1e-9)


@pytest.mark.slow
def test_with_every_endpoint_down_the_fleet_probes_and_recovers_by_itself(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """No retry storm: a request every few seconds, the reason shown; when they are back the run
    completes, and no prompt has been given up."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 2000), routing="spread"))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: sum(served(emulator).values()) > 200)
    emulator.set_faults({"kind": "unavailable_503"})
    log = run.directory / "logs" / "producer.log"
    wait_for(lambda: "BREAKER OPEN" in log.read_text())

    requests = emulator.books()["requests"]
    wait_for(lambda: emulator.books()["requests"] >= requests + 9)  # the first rests are short
    began = time.monotonic()
    wait_for(lambda: emulator.books()["requests"] >= requests + 13)
    # One to each of three endpoints may go out together; the fourth waits for their next rest.
    assert time.monotonic() - began > 2, "four requests of a fleet of 60"
    assert "no provider" in log.read_text().lower() or "unavailable" in log.read_text().lower()

    emulator.set_faults()
    assert producer.wait(timeout=120) == 0, log.read_text()
    assert len(run.rows()) == 2000


def test_an_endpoint_that_the_listing_calls_down_is_left_until_it_is_back(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """Its status falls to -5 in the middle of the run: it is not asked any more, the others go on;
    with its status its traffic comes back, at the price that it has then."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 12_000), routing="cheapest"))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: served(emulator).get("chutes/int4", 0) > 100)
    emulator.change_endpoint("chutes/int4", status=-5)
    log = run.directory / "logs" / "producer.log"
    wait_for(lambda: "chutes/int4: status: -5" in log.read_text())
    wait_for(lambda: endpoint(run.status(), "chutes/int4")["in_flight"] == 0)
    at_chutes, before = served(emulator)["chutes/int4"], sum(served(emulator).values())
    wait_for(lambda: sum(served(emulator).values()) > before + 500)
    assert served(emulator)["chutes/int4"] == at_chutes

    emulator.change_endpoint("chutes/int4", status=0, completion_usd_per_m=2.1)
    wait_for(lambda: served(emulator)["chutes/int4"] > at_chutes + 100)
    assert endpoint(run.status(), "chutes/int4")["completion_usd_per_m"] == pytest.approx(2.1)
    stopped(run, producer)
    assert run.status()["errors"] == {}


def test_answers_of_an_endpoint_that_came_up_meanwhile_are_its_own(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """Down when the run began: the manifest has it as soon as it is asked, so that tokenising does
    not take its answers for somebody else's."""
    emulator = start_emulator(CONFIG)
    emulator.change_endpoint("parasail/int4", status=-5)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 12_000), routing="cheapest"))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: sum(served(emulator).values()) > 100)
    assert allowed_providers(run.directory) == {"Chutes", "Inceptron"}
    emulator.change_endpoint("parasail/int4", status=0, completion_usd_per_m=1.0)
    wait_for(lambda: served(emulator).get("parasail/int4"))
    assert "Parasail" in allowed_providers(run.directory)
    stopped(run, producer)


def test_when_no_endpoint_is_left_the_run_pauses_and_goes_on_by_itself(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """The reason names each endpoint and the rule that removed it."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 12_000), routing="spread"))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: sum(served(emulator).values()) > 100)
    for tag in INT4:
        emulator.change_endpoint(tag, status=-5)
    paused = wait_for(lambda: run.status()["paused"])
    assert paused["kind"] == "no endpoint"
    assert all(f"{tag}: status: -5, below -2" in paused["reason"] for tag in INT4)
    at_pause = sum(served(emulator).values())
    for tag in INT4:
        emulator.change_endpoint(tag, status=0)
    wait_for(lambda: sum(served(emulator).values()) > at_pause + 200)
    stopped(run, producer)


@pytest.mark.parametrize(
    "routing", [pytest.param("cheapest", marks=pytest.mark.slow), "openrouter"]
)
def test_a_price_that_rises_unseen_is_not_paid(
    start_emulator, make_run, write_prompts, wait_for, routing: str
) -> None:
    """Each request names the price that is reserved for it: dearer, the endpoint does not answer,
    and what is billed stays below the cap."""
    emulator = start_emulator(CONFIG)
    run_file = RUN.format(path=write_prompts("B1", 6000), routing=routing)
    run_file = run_file.replace("deadline_s", "cap_usd = 0.5\ndeadline_s")
    ceiling = "[providers]\nmax_completion_usd_per_m = 5.0"
    run = make_run(emulator, run_file.replace("[providers]", ceiling))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: served(emulator).get("chutes/int4", 0) > 100)
    emulator.change_endpoint("chutes/int4", completion_usd_per_m=50.0)
    assert producer.wait(timeout=120) == 0, (run.directory / "logs/producer.log").read_text()
    dear = [e for e in emulator.billed() if float(e["cost_usd"]) > 300 * 3e-6]
    in_flight_at_the_change = 60
    assert len(dear) <= in_flight_at_the_change
    assert run.status()["cap_reached"]
    assert float(emulator.books()["total_usd"]) <= 0.5


def test_providers_lists_every_endpoint_with_its_verdict(start_emulator, make_run) -> None:
    """As a table and as JSON, without a key; exit status 2 when the policy leaves nobody."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path="none.jsonl", routing="cheapest"))
    run.environment["OPENROUTER_API_KEY"] = ""
    shown = run.producer("providers", "moonshotai/kimi-k2.5")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    places = [next(n for n, line in enumerate(lines) if tag in line) for tag in sorted(INT4)]
    assert places == sorted(places), "the cheapest first"
    assert "ignore: fireworks; quantization: nvfp4, not int4" in shown.stdout

    run.path.write_text(run.path.read_text().replace('"cheapest"', '"cheapest"\nmin_uptime = 100'))
    nobody = run.producer("providers", "moonshotai/kimi-k2.5", "--run", str(run.path), "--json")
    assert nobody.returncode == 2
    found = json.loads(nobody.stdout)
    assert found["read_at"]
    assert not any(e["kept"] for e in found["endpoints"])
    assert {e["tag"] for e in found["endpoints"]} == INT4 | {"fireworks"}
