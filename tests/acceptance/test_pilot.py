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
    for word in ("chutes/int4", "inceptron/int4", "B1", "B2", "1st try", "$/M out"):
        assert word in result.stdout

    rest = run.producer("run", str(run.path), "--yes")
    assert rest.returncode == 0, rest.stderr
    assert emulator.books()["billed_requests"] == 215
    assert len(run.rows()) == 215
