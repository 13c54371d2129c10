"""`producer pilot`: a few answers from every endpoint, kept for the run."""

import json
from collections import Counter

CONFIG = """
seed = 3
[backend.latency]
mean_s = 0.05
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
"""
RUN = """
[run]
name = "pilot"
model = "moonshotai/kimi-k2.5"
concurrency = 16
[sampling]
max_tokens = 300
[providers]
quantizations = ["int4"]
"""


def test_a_pilot_asks_every_endpoint_alike_and_its_answers_are_the_runs(
    start_emulator, make_run, write_prompts
) -> None:
    """20 prompts of each dataset, spread over its rows and over the endpoints, whatever the
    routing; the run that follows buys only the rest."""
    emulator = start_emulator(CONFIG)
    paths = {name: write_prompts(name, count) for name, count in (("B1", 200), ("B2", 15))}
    datasets = "".join(f'[[datasets]]\nname = "{n}"\npath = "{p}"\n' for n, p in paths.items())
    run = make_run(emulator, RUN + datasets)

    result = run.producer("pilot", str(run.path), "-n", "20", "--yes")
    assert result.returncode == 0, result.stderr
    rows = run.rows()
    assert Counter(row["dataset"] for row in rows) == {"B1": 20, "B2": 15}
    assert sorted(Counter(row["endpoint"] for row in rows).values()) == [17, 18]
    asked = [json.loads(row["messages"])[0]["content"] for row in rows if row["dataset"] == "B1"]
    numbers = sorted(int(text.split()[3]) for text in asked)
    assert numbers == list(range(0, 200, 10)), "spread over the dataset"
    for word in ("chutes/int4", "inceptron/int4", "B1", "B2", "ok %", "$/M"):
        assert word in result.stdout
    assert "run.target names no folder" in result.stderr, "why counts are not checked"
    plan = run.producer("plan", str(run.path), "--from-run", str(run.path))
    assert plan.stdout in result.stdout, "what the rest will cost, by what was measured"

    rest = run.producer("run", str(run.path), "--yes")
    assert rest.returncode == 0, rest.stderr
    assert emulator.books()["billed_requests"] == 215
    assert len(run.rows()) == 215
    assert run.producer("status", str(run.path)).stdout.startswith("ended")


def test_a_pilot_after_a_run_asks_for_its_own_prompts_alone(
    start_emulator, make_run, write_prompts
) -> None:
    """What a run left under way waits for that run; a dataset that has come to its budget is
    passed over, and said."""
    emulator = start_emulator(CONFIG)
    path = write_prompts("B1", 300)
    text = RUN + f'[[datasets]]\nname = "B1"\npath = "{path}"\nbudget_tokens = {{}}\n'
    run = make_run(emulator, text.format(2000))
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    bought = emulator.books()["billed_requests"]
    pilot = run.producer("pilot", str(run.path), "-n", "100", "--yes")
    assert pilot.returncode == 0, pilot.stderr
    assert emulator.books()["billed_requests"] == bought
    assert "no room for" in pilot.stderr

    run.path.write_text(text.format(100_000))
    assert run.producer("pilot", str(run.path), "-n", "5", "--yes").returncode == 0
    assert emulator.books()["billed_requests"] <= bought + 5


def test_a_pilot_shows_who_failed(start_emulator, make_run, write_prompts) -> None:
    """An endpoint that refuses everything has its row, and what it said, markup or not."""
    emulator = start_emulator(CONFIG)
    emulator.set_faults({"kind": "provider_502", "endpoint": "inceptron/int4"})
    run = make_run(
        emulator, RUN + f'[[datasets]]\nname = "B1"\npath = "{write_prompts("B1", 9)}"\n'
    )
    result = run.producer("pilot", str(run.path), "-n", "9", "--yes")
    assert result.returncode == 0, result.stderr
    row = next(line for line in result.stdout.splitlines() if " inceptron/int4" in line)
    assert row.split()[1:3] == ["0", "0"]
    assert all(
        len(line.rstrip()) <= 80
        for line in result.stdout.splitlines()
        if line.startswith(" inceptron")
    )
    assert "inceptron/int4: 100% failed:" in result.stdout
