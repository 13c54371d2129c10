"""A run through every kind of bad luck: nothing lost, nothing doubled, the books agree."""

from collections import Counter

import pytest

#: What an API with 10 % of bad luck does. Kinds that stop the whole run are elsewhere.
KINDS = [
    "provider_400",
    "timeout_408",
    "conflict_409",
    "rate_limit_429",
    "rate_limit_429_header",
    "rate_limit_429_metadata",
    "capacity_429",
    "server_500",
    "provider_502",
    "unavailable_503",
    "availability_503",
    "timeout_504",
    "timeout_524",
    "overloaded_529",
    "html_520",
    "html_525",
    "html_502",
    "in_flight_402",
    "error_200",
    "error_200_null_fields",
    "error_200_empty_choices",
    "error_200_string_code",
    "null_choices",
    "empty_choices",
    "missing_choices",
    "html_200",
    "empty_200",
    "cut_after_keepalives",
    "cut_mid_json",
    "cut_connection",
    "reset",
    "hang",
    "hang_silent",
    "finish_error",
    "zero_tokens",
    "length",
    "length_in_reasoning",
    "markup_in_content",
    "markup_in_reasoning",
    "think_leak",
    "empty_content",
    "null_native_finish",
    "wrong_provider",
    "context_length_400",
    "moderation_403",
    "too_large_413",
    "unprocessable_422",
]

CONFIG = """
seed = 7
keepalive_s = 0.05
[backend.latency]
kind = "exponential"
mean_s = 0.2
max_s = 1.0
[backend.completion]
mean_tokens = 60
"""

RUN = """
[run]
name = "faults"
model = "moonshotai/kimi-k2.5"
concurrency = 200
deadline_s = 3
max_attempts = 5
[sampling]
max_tokens = 300
[providers]
quantizations = ["int4"]
"""


@pytest.mark.timeout(180)
def test_every_prompt_is_done_or_dead_and_the_books_agree(
    start_emulator, make_run, write_prompts, command_lines
) -> None:
    """2,000 prompts in three datasets with 10 % mixed faults: each has one Parquet row or a
    reason in the dead letters, and the ledger's spend is what the provider billed."""
    rate = 0.10 / len(KINDS)
    faults = "".join(
        f'[[faults]]\nkind = "{kind}"\nrate = {rate}\nretry_after_s = 0.5\n' for kind in KINDS
    )
    emulator = start_emulator(CONFIG + faults)
    datasets = "".join(
        f'[[datasets]]\nname = "{name}"\npath = "{write_prompts(name, count)}"\n'
        for name, count in (("B1", 800), ("B2", 700), ("B3", 500))
    )
    run = make_run(emulator, RUN + datasets)

    result = run.producer("run", str(run.path), "--yes")
    print(result.stderr)
    status = run.status()
    rows = run.rows()

    done = {row["prompt_id"] for row in rows}
    failed = {line.split("\t")[0] for line in _failures(run)}
    assert len(rows) == len(done), "no prompt has two rows"
    assert done | failed == run.prompt_ids()
    assert not done & failed
    assert result.returncode == (1 if failed else 0), result.stderr
    assert f"2,000 prompts read = {len(done):,} done + {len(failed)} failed" in result.stderr
    assert all(line.split("\t")[4] for line in _failures(run)), "every dead letter has a reason"

    books = emulator.books()
    assert len(books["outcomes"]) > 30, "the faults were there"
    assert status["spent_usd"] == pytest.approx(float(books["total_usd"]), abs=1e-9)
    assert status["reserved_usd"] == 0
    assert status["in_flight"] == status["live"] == status["backlog"] == 0
    assert {row["provider"] for row in rows} <= {"Chutes", "Inceptron"}
    assert Counter(row["dataset"] for row in rows).keys() == {"B1", "B2", "B3"}
    assert not [line for line in command_lines() if str(run.directory).encode() in line]


def _failures(run) -> list[str]:
    result = run.producer("failures", str(run.path))
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()
