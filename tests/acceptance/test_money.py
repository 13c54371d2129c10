"""Budgets, the cap, the balance: what was asked is bought, once, and no more."""

import pytest

CONFIG = """
seed = 11
keepalive_s = 0.2
[backend.latency]
kind = "exponential"
mean_s = 0.2
max_s = 1.0
[backend.completion]
kind = "lognormal"
mean_tokens = 120
spread = 0.9
"""
RUN = """
[run]
name = "money"
model = "moonshotai/kimi-k2.5"
concurrency = 128
deadline_s = 10
cap_usd = {cap}
[sampling]
max_tokens = 600
[providers]
quantizations = ["int4"]
"""


def _dataset(name: str, path, budget: int = 0) -> str:
    return f'[[datasets]]\nname = "{name}"\npath = "{path}"\nbudget_tokens = {budget}\n'


def test_datasets_end_within_half_a_percent_of_their_budgets(
    start_emulator, make_run, write_prompts
) -> None:
    """Two budgets, sizes with a heavy tail, 128 in flight: each dataset stops at its own, and
    what it was billed for is what it has."""
    emulator = start_emulator(CONFIG)
    budgets = {"B1": 150_000, "B2": 90_000}
    datasets = "".join(
        _dataset(name, write_prompts(name, 3000), budget) for name, budget in budgets.items()
    )
    run = make_run(emulator, RUN.format(cap=0) + datasets)

    result = run.producer("run", str(run.path), "--yes")
    assert result.returncode == 0, result.stderr
    status = run.status()
    for dataset in status["datasets"]:
        budget = budgets[dataset["name"]]
        assert abs(dataset["tokens"] - budget) <= budget * 0.005, dataset
    done = sum(dataset["done"] for dataset in status["datasets"])
    assert emulator.books()["billed_requests"] == done == len(run.rows())
    assert f"{6000 - done:,} out of budget" in result.stderr

    again = run.producer("run", str(run.path), "--yes")
    assert again.returncode == 0, again.stderr
    assert emulator.books()["billed_requests"] == done, "an ended dataset asks for nothing"


def test_second_run_buys_nothing_and_a_raised_budget_goes_on(
    start_emulator, make_run, write_prompts
) -> None:
    """The same files enqueued again are known; a budget that was raised is honoured."""
    emulator = start_emulator(CONFIG)
    path = write_prompts("B1", 400)
    run = make_run(emulator, RUN.format(cap=0) + _dataset("B1", path, 12_000))
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    first = emulator.books()["billed_requests"]
    assert 0 < first < 400

    run.path.write_text(RUN.format(cap=0) + _dataset("B1", path))
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    assert emulator.books()["billed_requests"] == 400
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    assert emulator.books()["billed_requests"] == 400
    assert len(run.rows()) == 400


def test_cap_in_dollars_holds(start_emulator, make_run, write_prompts) -> None:
    """The money ends in the middle of the run: the provider never bills more than the cap, and
    little of it is left."""
    emulator = start_emulator(CONFIG)
    cap = 0.20
    run = make_run(emulator, RUN.format(cap=cap) + _dataset("B1", write_prompts("B1", 3000)))

    result = run.producer("run", str(run.path), "--yes")
    assert result.returncode == 0, result.stderr
    billed = float(emulator.books()["total_usd"])
    assert cap * 0.97 < billed <= cap
    status = run.status()
    assert status["cap_reached"]
    assert status["spent_usd"] == pytest.approx(billed, abs=1e-9)


def test_run_pauses_without_credits_and_goes_on_after_a_top_up(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """The balance runs out: the run pauses, loses nothing, counts no attempt, and resumes by
    itself when there is money again."""
    emulator = start_emulator("balance_usd = 0.05\n" + CONFIG)
    run = make_run(emulator, RUN.format(cap=0) + _dataset("B1", write_prompts("B1", 500)))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")

    paused = wait_for(lambda: (run.directory / "redis").exists() and run.status()["paused"])
    assert paused["kind"] == "out of credits"
    assert "credits" in paused["reason"].lower()
    emulator.topup(10)

    assert producer.wait(timeout=90) == 0, (run.directory / "logs/producer.log").read_text()
    rows = run.rows()
    assert len(rows) == len({row["prompt_id"] for row in rows}) == 500
    assert all(row["attempts"] == 1 for row in rows)


def test_the_run_pauses_before_the_account_refuses(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """What the account has left is held like a cap: claims stop, the run says how much is left,
    and OpenRouter never had to answer 402; after a top-up it goes on by itself."""
    emulator = start_emulator("balance_usd = 0.06\ncheck_max_tokens = true\n" + CONFIG)
    run = make_run(emulator, RUN.format(cap=0) + _dataset("B1", write_prompts("B1", 900)))
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    paused = wait_for(lambda: (run.directory / "redis").exists() and run.status()["paused"])
    assert paused["kind"] == "out of credits"
    assert "are left" in paused["reason"]
    assert not [kind for kind in emulator.books()["outcomes"] if "402" in kind]
    status = run.producer("status", str(run.path)).stdout
    assert "PAUSED (out of credits)" in status
    assert "balance $0.00" in status
    emulator.topup(10)
    assert producer.wait(timeout=90) == 0, (run.directory / "logs/producer.log").read_text()
    assert len(run.rows()) == 900
    assert set(emulator.books()["outcomes"]) == {"ok"}
