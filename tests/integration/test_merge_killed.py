"""A merge as its user starts it: from the command line, killed, started again, twice at once."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from samples_kit import Row, write_run

from gpu_stage.merge import merge
from gpu_stage.merge.settings import MergeFile


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with something to merge."""
    return write_run(tmp_path / "run", {"B1": [Row(text=f"question {n}") for n in range(50)]})


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gpu_stage", *map(str, arguments)]


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_killed_in_the_middle_and_started_again_it_makes_the_same_set(
    run: Path, tmp_path: Path
) -> None:
    """What the first left behind is cleared away, and is never taken for a set."""
    waits = tmp_path / "exam.jsonl"
    os.mkfifo(waits)
    toml = tmp_path / "merge.toml"
    toml.write_text('[[evaluation_sets]]\nname = "exam"\npath = "exam.jsonl"\n')
    first = subprocess.Popen(command("merge", run, "--out", tmp_path / "set", "-c", toml))
    with waits.open("w"):  # opens when the merge reads: it is in the middle of its work
        first.send_signal(signal.SIGKILL)
        first.wait()
    left = tmp_path / ".set.unfinished"
    assert left.is_dir() and not (tmp_path / "set").exists()
    (left / "train").mkdir()
    (left / "train" / "part-00099.parquet").write_text("half a file")
    waits.unlink()
    waits.write_text('{"question": "Why?"}\n')
    subprocess.run(command("merge", run, "--out", tmp_path / "set", "-c", toml), check=True)
    assert not left.exists()
    subprocess.run(command("merge", run, "--out", tmp_path / "two" / "set", "-c", toml), check=True)
    one, other = files(tmp_path / "set"), files(tmp_path / "two" / "set")
    assert {k: v for k, v in one.items() if k != "set.json"} == {
        k: v for k, v in other.items() if k != "set.json"
    }, "set.json says where the run is, seen from the set"


def test_a_second_merge_into_one_folder_is_refused(run: Path, tmp_path: Path) -> None:
    """It says so, and leaves the files of the first alone."""
    unfinished = tmp_path / ".set.unfinished"
    unfinished.mkdir()
    (unfinished / "of-the-first").touch()
    descriptor = os.open(unfinished, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    done = subprocess.run(
        command("merge", run, "--out", tmp_path / "set"), capture_output=True, text=True
    )
    os.close(descriptor)
    assert done.returncode == 2
    assert "another process is writing it" in done.stderr
    assert (unfinished / "of-the-first").exists()


def test_the_command_says_what_it_did(run: Path, tmp_path: Path) -> None:
    """Rows read, kept and left out to a person; the record with --json; a refusal with status 2."""
    done = subprocess.run(
        command("merge", run, "--out", tmp_path / "set"), capture_output=True, text=True, check=True
    )
    assert "50 samples read:" in done.stdout
    done = subprocess.run(
        command("merge", run, "--out", tmp_path / "json", "--json"), capture_output=True, check=True
    )
    assert json.loads(done.stdout)["overall"]["read"]["rows"] == 50
    done = subprocess.run(
        command("merge", run, "--out", tmp_path / "set"), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "is there already" in done.stderr and "Traceback" not in done.stderr


def test_conversations_go_out_and_in_from_the_command_line(run: Path, tmp_path: Path) -> None:
    """Each command says how many answers it moved, and what comes next."""
    out = tmp_path / "out.jsonl"
    asked = command("export-conversations", run, "--format", "specforge", "--out", out)
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert "Wrote 50 answers" in done.stdout
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "run.toml").write_text(
        '[run]\nname = "e"\nmodel = "a/m"\n[[datasets]]\nname = "X"\npath = "x"\n'
    )
    asked = command("import-conversations", out, "--run", elsewhere, "--dataset", "X")
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert "50 lines read: 50 conversations, 50 answers" in done.stdout
    assert "Of 50 answers nothing says how they ended" in done.stdout
    assert "Next: gpu-stage tokens" in done.stdout


@pytest.mark.slow
def test_memory_does_not_grow_with_the_ids(tmp_path: Path) -> None:
    """Four times the tokens, in four times the parts, take the same memory within 64 MB."""
    peaks = [_peak_mb(tmp_path / str(rows), rows) for rows in (5_000, 20_000)]
    print(f"peak memory in MB: {peaks}")
    assert peaks[1] < peaks[0] + 64


def _peak_mb(folder: Path, rows: int) -> float:
    """Of a merge of `rows` samples of 2,000 tokens in a process of its own."""
    ids = list(range(1000))
    for part in range(rows // 1_000):
        some = [
            Row(text=f"question {part} {n}", prompt_ids=ids, completion_ids=ids)
            for n in range(1_000)
        ]
        write_run(folder / f"run{part}", {"B1": some})
    (folder / "merge.toml").write_text("part_tokens = 4_000_000\n[near_duplicates]\n")
    code = (
        "import resource, sys; from pathlib import Path; from gpu_stage.merge import merge; "
        "from gpu_stage.merge.settings import load; here = Path(sys.argv[1]); "
        "merge(sorted(here.glob('run*')), here / 'set', load(here / 'merge.toml')); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def test_settings_without_a_file_are_the_defaults(run: Path, tmp_path: Path) -> None:
    """Near-duplicates and evaluation sets are looked for only when named."""
    record = merge([run], tmp_path / "set", MergeFile())
    assert record["settings"]["near_duplicates"] is None
    assert record["evaluation_sets"] == {}
