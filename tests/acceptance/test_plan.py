"""`producer plan`: what a run will cost, held against the cap and the balance, and what fits."""

import json
from pathlib import Path

import pytest

CONFIG = """
balance_usd = {balance}
[backend.completion]
kind = "constant"
mean_tokens = 100
[[endpoints]]
tag = "chutes/int4"
provider_name = "Chutes"
quantization = "int4"
prompt_usd_per_m = 0.44
completion_usd_per_m = 2.0
[[endpoints]]
tag = "inceptron/int4"
provider_name = "Inceptron"
quantization = "int4"
prompt_usd_per_m = 0.44
completion_usd_per_m = 2.2
[[endpoints]]
tag = "fireworks"
provider_name = "Fireworks"
quantization = "int4"
prompt_usd_per_m = 0.1
completion_usd_per_m = 0.2
"""
RUN = """
[run]
name = "plan"
model = "moonshotai/kimi-k2.5"
cap_usd = {cap}
[sampling]
max_tokens = 1000
{extra}
"""


@pytest.fixture
def planned(start_emulator, make_run, write_prompts):
    """A run of two datasets of 200 prompts, each with a budget of 100,000 tokens."""

    def make(cap: float = 0, balance: float = 0, extra: str = "", names=("B1", "B2")):
        datasets = "".join(
            f'[[datasets]]\nname = "{name}"\npath = "{write_prompts(name, 200)}"\n'
            "budget_tokens = 100_000\n"
            for name in names
        )
        emulator = start_emulator(CONFIG.format(balance=balance))
        return make_run(emulator, RUN.format(cap=cap, extra=extra) + datasets)

    return make


def ask(run, *arguments: str, code: int = 0) -> dict:
    result = run.producer("plan", str(run.path), "--json", *arguments)
    assert result.returncode == code, result.stderr
    return dict(json.loads(result.stdout))


def test_a_plan_that_fits_says_so_and_leaves_nothing(planned) -> None:
    """Exit status 0; nothing is bought, and the run's folder has its file alone."""
    run = planned(cap=1)
    result = run.producer("plan", str(run.path))
    assert result.returncode == 0, result.stderr
    assert "It fits" in result.stdout
    assert "Answers assumed to have 1,000 tokens" in result.stderr
    assert [path.name for path in run.directory.iterdir()] == ["run.toml"]
    assert run.emulator.books()["requests"] == 0


def test_only_allowed_endpoints_are_priced(planned) -> None:
    """Fireworks is cheapest, and left out by default: the mix is 95 % Chutes."""
    prices = {price["name"]: price for price in ask(planned())["prices"]}
    assert set(prices) == {"cheapest", "mix", "dearest"}
    assert prices["cheapest"]["completion_usd"] == pytest.approx(2.0e-6)
    assert prices["dearest"]["completion_usd"] == pytest.approx(2.2e-6)
    assert prices["mix"]["completion_usd"] == pytest.approx(0.95 * 2.0e-6 + 0.05 * 2.2e-6)
    for price in prices.values():
        assert price["cost"]["output_usd"] == pytest.approx(200_000 * price["completion_usd"])


def test_what_does_not_fit_gets_budgets_that_do(planned) -> None:
    """Exit status 1; with the proposed budgets in the file it fits."""
    run = planned(cap=0.2)
    found = ask(run, code=1)
    assert found["money"]["left_usd"] == pytest.approx(0.2)
    (budget,) = set(found["proposals"]["equal"].values())
    assert 40_000 < budget < 50_000, "0.2 USD at 2.01 USD per million, and the input"
    text = run.path.read_text()
    run.path.write_text(text.replace("100_000", str(budget)))
    assert ask(run)["fits"]


def test_the_balance_counts_where_it_is_less_than_the_cap(planned) -> None:
    """The account has a tenth of what the cap allows."""
    found = ask(planned(cap=1, balance=0.1), code=1)
    assert found["money"]["balance_usd"] == pytest.approx(0.1)
    assert found["money"]["left_usd"] == pytest.approx(0.1)


def test_after_a_pilot_sizes_and_prices_are_measured(planned) -> None:
    """Answers have 100 tokens and not 1,000; what is bought is not planned again; a dataset that
    was not there has the mean of the others, which is said."""
    run = planned(cap=1)
    pilot = run.producer("pilot", str(run.path), "-n", "10", "--yes")
    assert pilot.returncode == 0, pilot.stderr
    billed = float(run.emulator.books()["total_usd"])
    before = sorted(run.directory.rglob("*.parquet"))

    found = ask(run, "--from-run", str(run.path))
    assert found["decided_by"] == "measured"
    assert found["money"]["bought_usd"] == pytest.approx(billed)
    first = found["datasets"][0]
    rows = [row for row in run.rows() if row["dataset"] == "B1"]
    mean = sum(row["completion_tokens"] for row in rows) / len(rows)
    assert first["answer_tokens"] == pytest.approx(mean)
    assert first["measured"]["answers"] == len(rows) == 10
    assert first["prompts"] == 190
    assert any("of the 100,000 tokens" in note for note in found["notes"]), "the prompts run out"

    other = planned(cap=1, names=("B1", "B3"))
    notes = ask(other, "--from-run", str(run.path))["notes"]
    assert any(note.startswith("B3: not in that run") for note in notes)
    assert not any(note.startswith("B1: not in that run") for note in notes)
    assert sorted(run.directory.rglob("*.parquet")) == before


def test_prompts_are_counted_without_touching_a_run_that_is_under_way(planned, write_prompts):
    """A dataset that was added is read, and not frozen by planning."""
    run = planned()
    assert run.producer("pilot", str(run.path), "-n", "1", "--yes").returncode == 0
    path = write_prompts("B9", 50)
    run.path.write_text(run.path.read_text() + f'[[datasets]]\nname = "B9"\npath = "{path}"\n')
    assert [d["dataset"] for d in ask(run)["datasets"]] == ["B1", "B2", "B9"]
    assert not (run.directory / "prompts" / "B9.parquet").exists()


def test_a_plan_without_answers_or_endpoints_is_refused(planned, tmp_path: Path) -> None:
    """Exit status 2, with what to do."""
    run = planned()
    nothing = run.producer("plan", str(run.path), "--from-run", str(run.path))
    assert nothing.returncode == 2
    assert "no answers on disk" in nothing.stderr
    nobody = planned(extra='[providers]\nonly = ["parasail"]\n')
    result = nobody.producer("plan", str(nobody.path))
    assert result.returncode == 2
    assert "chutes/int4: only" in result.stderr
