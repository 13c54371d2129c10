"""The `producer` command as a user meets it: messages, exit codes, Ctrl-C, steering a run."""

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

CONFIG = """
keepalive_s = 0.2
[backend.latency]
kind = "constant"
mean_s = {latency}
"""
RUN = """
[run]
name = "cli"
model = "moonshotai/kimi-k2.5"
concurrency = {concurrency}
deadline_s = 20
max_attempts = 2
[sampling]
max_tokens = 200
"""


@pytest.fixture
def small_run(start_emulator, make_run, write_prompts):
    """A run of so many prompts whose requests take so long."""

    def make(prompts: int = 20, latency: float = 0.05, concurrency: int = 32, extra: str = ""):
        emulator = start_emulator(CONFIG.format(latency=latency))
        path = write_prompts("B1", prompts)
        dataset = f'[[datasets]]\nname = "B1"\npath = "{path}"\n'
        return make_run(emulator, RUN.format(concurrency=concurrency) + extra + dataset)

    return make


def test_init_writes_a_run_file_that_loads(tmp_path: Path, small_run) -> None:
    """What `init` writes is complete; it never overwrites."""
    run = small_run()
    path = tmp_path / "kimi" / "run.toml"
    assert run.producer("init", str(path)).returncode == 0
    (path.parent / "prompts.jsonl").write_text('{"prompt": "hello"}\n')
    plan = run.producer("run", str(path), "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "B1: 1 prompts, 1,000,000 tokens" in plan.stderr
    again = run.producer("init", str(path))
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_dry_run_buys_nothing(small_run) -> None:
    """`--dry-run` reads, counts and prices, and sends no completion request."""
    run = small_run()
    result = run.producer("run", str(run.path), "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "B1: 20 prompts" in result.stderr
    assert re.search(r"chutes/int4 +int4 +0\.44 +2\.00 ", result.stderr)
    assert "chutes/int4 (Chutes): kept" in result.stderr
    assert re.search(r"fireworks .* ignore: fireworks; quantization: nvfp4", result.stderr)
    assert run.emulator.books()["requests"] == 0


def test_nobody_is_charged_without_a_yes(small_run) -> None:
    """Where nobody can be asked, spending needs `--yes`."""
    run = small_run()
    result = run.producer("run", str(run.path))
    assert result.returncode == 2
    assert "--yes" in result.stderr
    assert run.emulator.books()["requests"] == 0


def test_limit_feeds_the_first_prompts_and_later_the_rest(small_run) -> None:
    """`--limit` counts as all that was read; without it the run goes on from there."""
    run = small_run(prompts=20)
    first = run.producer("run", str(run.path), "--yes", "--limit", "5")
    assert first.returncode == 0, first.stderr
    assert "5 prompts read = 5 done" in first.stderr
    assert run.emulator.books()["billed_requests"] == 5
    second = run.producer("run", str(run.path), "--yes")
    assert "20 prompts read = 20 done" in second.stderr
    assert run.emulator.books()["billed_requests"] == 20


def test_failed_prompts_are_listed_exported_and_retried(tmp_path: Path, small_run) -> None:
    """Dead letters keep their reason; `--retry` sends them again once the cause is gone."""
    run = small_run(prompts=10)
    run.emulator.set_faults({"kind": "context_length_400", "rate": 0.5})
    assert run.producer("run", str(run.path), "--yes").returncode == 1
    listed = run.producer("failures", str(run.path), "--json")
    failures = json.loads(listed.stdout)
    assert 0 < len(failures) < 10
    assert all("context" in failure["reason"] for failure in failures)
    export = tmp_path / "failures.jsonl"
    assert run.producer("failures", str(run.path), "--export", str(export)).returncode == 0
    assert len(export.read_text().splitlines()) == len(failures)

    run.emulator.set_faults()
    retried = run.producer("failures", str(run.path), "--retry")
    assert f"{len(failures)} prompts will be sent again" in retried.stdout
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    assert len(run.rows()) == 10


def test_first_ctrl_c_drains_and_the_next_start_goes_on(small_run, wait_for) -> None:
    """What is in flight at the first Ctrl-C is finished and kept, nothing else is sent."""
    run = small_run(prompts=300, latency=1.0, concurrency=20)
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: run.emulator.books()["in_flight"] >= 15)
    producer.send_signal(signal.SIGINT)
    assert producer.wait(timeout=30) == 130
    log = (run.directory / "logs" / "producer.log").read_text()
    assert "Draining" in log
    assert "unfinished" in log
    billed = run.emulator.books()["billed_requests"]
    assert 0 < billed < 300
    assert len(run.rows()) == billed, "nothing that was paid for is missing"

    run.emulator.change_endpoint("chutes/int4", latency_factor=0.01)
    run.emulator.change_endpoint("inceptron/int4", latency_factor=0.01)
    run.emulator.change_endpoint("fireworks", latency_factor=0.01)
    assert run.producer("run", str(run.path), "--yes").returncode == 0
    assert run.emulator.books()["billed_requests"] == 300
    assert Counter(row["prompt_id"] for row in run.rows()).most_common(1)[0][1] == 1


def test_second_ctrl_c_aborts_at_once(small_run, wait_for, command_lines) -> None:
    """The second Ctrl-C waits for nothing, and leaves no process."""
    run = small_run(prompts=50, latency=60, concurrency=20)
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: run.emulator.books()["in_flight"] >= 15)
    producer.send_signal(signal.SIGINT)
    wait_for(lambda: "Draining" in (run.directory / "logs" / "producer.log").read_text())
    producer.send_signal(signal.SIGINT)
    assert producer.wait(timeout=10) == 130
    assert not [line for line in command_lines() if str(run.directory).encode() in line]


def test_a_run_is_paused_resumed_and_a_dataset_cancelled(small_run, wait_for, tmp_path) -> None:
    """The steering commands act on a run in another process; its end says what became of all."""
    run = small_run(prompts=400, latency=0.5, concurrency=20)
    more = tmp_path / "more.jsonl"
    more.write_text("\n".join(json.dumps({"prompt": f"more {n}"}) for n in range(30)))
    run.path.write_text(run.path.read_text() + f'[[datasets]]\nname = "B2"\npath = "{more}"\n')
    producer = run.start("producer", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: run.emulator.books()["billed_requests"] > 5)

    assert run.producer("pause", str(run.path)).returncode == 0
    wait_for(lambda: run.emulator.books()["in_flight"] == 0)
    status = run.status()
    assert status["paused"]["kind"] == "user"
    billed = run.emulator.books()["billed_requests"]
    unknown = run.producer("cancel", str(run.path), "B9")
    assert unknown.returncode == 2
    assert "no dataset is named 'B9'; the run has B1, B2" in unknown.stderr
    assert run.producer("cancel", str(run.path), "B1").returncode == 0
    assert run.emulator.books()["billed_requests"] == billed, "paused means paused"
    assert run.producer("resume", str(run.path)).returncode == 0

    assert producer.wait(timeout=60) == 0
    log = (run.directory / "logs" / "producer.log").read_text()
    done = len(run.rows())
    assert f"430 prompts read = {done} done + 0 failed + {430 - done} cancelled" in log
    assert {row["dataset"] for row in run.rows()} >= {"B2"}
    assert sum(row["dataset"] == "B2" for row in run.rows()) == 30


def test_turns_are_written_anew_one_after_the_other(start_emulator, make_run, tmp_path) -> None:
    """With `turns = "all"` each answer is the context of the next turn, the old ones are gone."""
    conversation = [
        {"from": "human", "value": "First?"},
        {"from": "gpt", "value": "an old answer"},
        {"from": "human", "value": "Second?"},
        {"from": "gpt", "value": "another old answer"},
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"conversations": conversation}) + "\n")
    emulator = start_emulator()
    run = make_run(
        emulator,
        RUN.format(concurrency=4)
        + f'[[datasets]]\nname = "chat"\npath = "{path}"\nturns = "all"\n',
    )
    result = run.producer("run", str(run.path), "--yes")
    assert result.returncode == 0, result.stderr
    first, second = sorted(run.rows(), key=lambda row: row["turn"])
    assert json.loads(first["messages"]) == [{"role": "user", "content": "First?"}]
    assert json.loads(second["messages"]) == [
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "Second?"},
    ]
    assert "2 prompts read = 2 done" in result.stderr


def test_wrong_commands_say_what_to_do(small_run, tmp_path: Path) -> None:
    """Bad input ends with status 2 and one sentence, never a traceback."""
    run = small_run()
    bad = tmp_path / "bad.toml"
    bad.write_text(run.path.read_text().replace("max_attempts", "max_atempts"))
    cases = [
        (("run", str(tmp_path / "none.toml")), "no such file"),
        (("run", str(bad)), "max_atempts"),
        (("enqueue", str(run.path), "--yes"), "REDIS_URL"),
        (("status", str(run.path)), "never started"),
    ]
    for arguments, words in cases:
        result = run.producer(*arguments)
        assert result.returncode == 2, arguments
        assert words in result.stderr
        assert "Traceback" not in result.stderr
    keyless = run.producer("run", str(run.path), "--yes", OPENROUTER_API_KEY="")
    assert keyless.returncode == 2
    assert "OPENROUTER_API_KEY" in keyless.stderr


def test_a_run_is_not_led_astray_by_folders_where_it_is_started(small_run, tmp_path: Path) -> None:
    """Its user's folders may be called as our packages are."""
    run = small_run(prompts=5)
    for name in ("fleet", "tokens", "workers", "producer", "emulator"):
        (tmp_path / "home" / name).mkdir(parents=True)
    result = subprocess.run(
        [Path(sys.executable).with_name("producer"), "run", run.directory, "--yes"],
        env=run.environment,
        cwd=tmp_path / "home",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "5 prompts read = 5 done" in result.stderr
