"""`gpu-stage tokens` as its user runs it: exit codes, kill -9, memory."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import completions_kit as kit
import psutil
import pyarrow.parquet as pq
import pytest

from gpu_stage.claimed_file import temporary_of
from gpu_stage.samples import samples_of

#: Most that a process may use beside the interpreter, its libraries and the tokenizer.
MOST_MB = 400


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory without completions."""
    return kit.write_run(tmp_path / "run", kit.write_model(tmp_path / "model"))


def gpu_stage(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Start a `gpu-stage` command."""
    return subprocess.Popen(
        [sys.executable, "-m", "gpu_stage", *arguments],
        env={**os.environ, "REDIS_URL": "", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_the_command_makes_samples_and_reports(run: Path) -> None:
    """A directory or its run file; JSON is the report; a second call makes nothing."""
    kit.write_part(run, [kit.row(0), kit.row(1, off=1)])
    status, out, err = ended(gpu_stage("tokens", str(run), "--json"))
    assert status == 0 and err == (
        "Parts: 1 made, 0 up to date, 0 busy, 0 failed. "
        f"2 completions, {2 * (kit.PROMPT_TOKENS + len('It scatters.') + 1):,} tokens.\n"
    ), "no bar where no terminal is"
    assert json.loads(out) == json.loads((run / "samples/report.json").read_text("utf-8"))
    status, out, err = ended(gpu_stage("tokens", str(run / "run.toml")))
    assert status == 0 and "0 made, 1 up to date" in err
    assert "counted" in out and "50.0%" in out


def test_a_part_that_cannot_be_made_is_exit_status_1(run: Path) -> None:
    """The others are made, and the message has its path and what to do."""
    kit.write_part(run, [kit.row(0)])
    bad = kit.write_part(run, [kit.row(1)])
    bad.write_bytes(b"torn")
    status, _, err = ended(gpu_stage("tokens", str(run)))
    assert status == 1 and str(bad) in err and "move it out" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["RUN/absent"], "no such run"),
        (["RUN"], "no completions there"),
        (["RUN", "--queue"], "REDIS_URL is not set"),
        (["RUN/.."], "has no run.toml"),
    ],
)
def test_refusals_are_exit_status_2_and_say_what_to_do(
    run: Path, arguments: list[str], words: str
) -> None:
    """One line on standard error, no traceback."""
    process = gpu_stage("tokens", *(word.replace("RUN", str(run)) for word in arguments))
    status, out, err = ended(process)
    assert status == 2 and out == "" and words in err and "Traceback" not in err


def test_kill_9_in_the_middle_loses_and_doubles_nothing(run: Path) -> None:
    """What was being made is made anew; what was made stays; children end with their parent."""
    small = kit.write_part(run, [kit.row(n) for n in range(3)])
    assert ended(gpu_stage("tokens", str(run)))[0] == 0
    before = samples_of(run, small).stat().st_mtime_ns
    large = kit.write_part(run, [kit.row(n, f"{n} " * 500) for n in range(1_500)])
    process = gpu_stage("tokens", str(run), "-j", "1")
    children = _in_the_middle(process, samples_of(run, large))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(children, timeout=30)
    assert not any(child.is_running() for child in children)
    assert not samples_of(run, large).exists()
    status, _, err = ended(gpu_stage("tokens", str(run)))
    assert status == 0 and "1 made, 1 up to date" in err
    assert samples_of(run, small).stat().st_mtime_ns == before
    ids = [row["prompt_id"] for row in kit.samples(run, large)]
    assert ids == [f"{n:032x}" for n in range(1_500)]
    files = [path.name for path in samples_of(run, large).parent.iterdir()]
    assert sorted(files) == sorted([small.name, large.name])


def _in_the_middle(process: "subprocess.Popen[str]", samples: Path) -> list[psutil.Process]:
    """Wait until a part of the samples is written; the processes below the command."""
    temporary = temporary_of(samples)
    while not (temporary.exists() and temporary.stat().st_size):
        assert process.poll() is None
        time.sleep(0.01)
    return psutil.Process(process.pid).children(recursive=True)


def test_ctrl_c_is_exit_status_130(run: Path) -> None:
    """It ends with its children and leaves nothing that looks finished."""
    large = kit.write_part(run, [kit.row(n, f"{n} " * 500) for n in range(1_500)])
    process = gpu_stage("tokens", str(run), "-j", "1")
    children = _in_the_middle(process, samples_of(run, large))
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130
    psutil.wait_procs(children, timeout=30)
    assert not samples_of(run, large).exists()


@pytest.mark.slow
def test_memory_is_bounded_whatever_a_part_holds(run: Path) -> None:
    """A part of 20,000 long answers, ten times what the collector writes, in a process's few MB."""
    text = "a word or two of an answer " * 150
    part = kit.write_part(run, [kit.row(n, f"{n} {text}") for n in range(20_000)])
    process = gpu_stage("tokens", str(run), "-j", "1")
    peak = 0
    while process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            peak = max(peak, _rss_mb(child))
        time.sleep(0.05)
    assert ended(process)[0] == 0
    assert pq.read_metadata(samples_of(run, part)).num_rows == 20_000
    print(f"peak of the process that makes samples: {peak} MB")
    assert 0 < peak < MOST_MB


def _rss_mb(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss) // 2**20
    except psutil.NoSuchProcess:
        return 0
