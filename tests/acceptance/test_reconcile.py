"""`producer reconcile`: what the ledger spent, against what was billed."""

import json

CONFIG = """
seed = 3
balance_usd = 50.0
[backend.latency]
mean_s = 0.05
[backend.completion]
mean_tokens = 60
"""
RUN = """
[run]
name = "books"
model = "moonshotai/kimi-k2.5"
concurrency = 32
[sampling]
max_tokens = 300
[providers]
quantizations = ["int4"]
[[datasets]]
name = "B1"
path = "{path}"
"""


def reconciled(run, *arguments: str) -> tuple[int, dict]:
    result = run.producer("reconcile", str(run.path), "--json", *arguments)
    assert result.returncode in (0, 1), result.stderr
    return result.returncode, json.loads(result.stdout)


def test_the_ledger_agrees_with_the_books(start_emulator, make_run, write_prompts) -> None:
    """Three sums and a sample of the answers: nothing differs."""
    emulator = start_emulator(CONFIG)
    emulator.set_faults({"kind": "wrong_provider", "rate": 0.05}, {"kind": "length", "rate": 0.1})
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 200)))
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    code, found = reconciled(run, "--sample", "60")
    billed = float(emulator.books()["total_usd"])
    assert code == 0, found
    for name in ("ledger_usd", "billed_usd", "files_usd"):
        assert abs(found[name] - billed) < 1e-9
    assert (found["sampled"], found["differences"], found["problems"]) == (60, [], [])


def test_what_something_else_spent_on_the_key_is_seen(
    start_emulator, make_run, write_prompts
) -> None:
    """Another run uses the same key at the same time: the sums differ and the command says so."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 60)))
    other = make_run(emulator, RUN.replace("books", "other").format(path=write_prompts("B2", 60)))
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    assert other.producer("run", str(other.path), "--yes").returncode == 0
    code, found = reconciled(run, "--sample", "5")
    assert code == 1
    (problem,) = found["problems"]
    assert "did something else use the key" in problem


def test_an_answer_that_was_billed_otherwise_is_named(
    start_emulator, make_run, write_prompts
) -> None:
    """Responses said fewer tokens and less money than the record of them: listed by prompt."""
    emulator = start_emulator(CONFIG)
    run = make_run(emulator, RUN.format(path=write_prompts("B1", 40)))
    emulator.set_faults({"kind": "missing_usage", "rate": 0.2})
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    code, found = reconciled(run)
    assert code == 1
    rows = {row["prompt_id"]: row for row in run.rows()}
    differing = {d["prompt_id"] for d in found["differences"]}
    assert differing == {i for i, row in rows.items() if row["cost_usd"] is None}
    text = run.producer("reconcile", str(run.path))
    assert text.returncode == 1
    assert all(prompt_id in text.stdout for prompt_id in differing)
