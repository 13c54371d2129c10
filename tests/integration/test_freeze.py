"""Datasets → frozen prompts: contents, duplicates, repeated and interrupted calls, memory."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fleet.errors import ConfigError, InputError
from fleet.records import prompt_id
from fleet.run_config import Dataset, Sampling
from fleet.schemas import PROMPT_REJECT_KEYS, PROMPTS
from producer import frozen
from producer.freeze import FreezeSummary, freeze, iter_chains, iter_ids, read_prompts

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ROOT.parent / "shared" / "data" / "prompts"
MODEL = "moonshotai/kimi-k2.5"


def run(folder: Path, *, seen: set[bytes] | None = None, **options: Any) -> FreezeSummary:
    """Freeze the dataset D of `d.jsonl`."""
    model = options.pop("model", MODEL)
    sampling = options.pop("sampling", Sampling())
    strict = options.pop("strict", False)
    dataset = Dataset(**{"name": "D", "path": "d.jsonl", **options})
    known: set[bytes] = set() if seen is None else seen
    return freeze(dataset, folder, folder / "run", model, sampling, strict=strict, seen=known)


def write(folder: Path, *rows: Any, name: str = "d.jsonl") -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def prompts(folder: Path, name: str = "D") -> list[frozen.Prompt]:
    return list(read_prompts(folder / f"run/prompts/{name}.parquet"))


def rejects(folder: Path, name: str = "D") -> list[dict[str, Any]]:
    text = (folder / f"run/rejects/prompts-{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="../shared/data/prompts is absent")
@pytest.mark.parametrize(
    ("name", "conversations", "answers"),
    [("gsm8k_test", 1319, 1319), ("humaneval", 164, 164), ("specbench", 480, 560)],
)
def test_public_prompt_sets_are_read_with_no_option(
    tmp_path: Path, name: str, conversations: int, answers: int
) -> None:
    """Every row is a prompt, in the order of the file; Spec-Bench has second turns."""
    dataset = Dataset(name=name, path=f"../shared/data/prompts/{name}.jsonl")
    summary = freeze(dataset, ROOT, tmp_path / "run", MODEL, Sampling(), seen=set())
    assert (summary.rows_read, summary.conversations) == (conversations, conversations)
    assert (summary.prompts, summary.rejected, summary.duplicates) == (answers, 0, 0)
    first_turns = [prompt for prompt in prompts(tmp_path, name) if prompt.turn == 0]
    assert [prompt.line for prompt in first_turns] == list(range(1, conversations + 1))
    assert {prompt.source for prompt in first_turns} == {dataset.path}


def test_a_frozen_file_has_the_schema_that_all_stages_share(tmp_path: Path) -> None:
    """Columns and ids are those of `fleet.records`."""
    tool = {"type": "function", "function": {"name": "f"}}
    write(tmp_path, {"turns": ["x", "y"], "tools": [tool]})
    run(tmp_path)
    assert pq.read_schema(tmp_path / "run/prompts/D.parquet").remove_metadata() == PROMPTS
    first, second = prompts(tmp_path)
    identity = Sampling().identity()
    messages = [{"role": "user", "content": "x"}]
    assert first.prompt_id == prompt_id(MODEL, identity, messages, [tool])
    assert json.loads(first.messages) == messages
    assert first.tools is not None
    assert json.loads(first.tools) == [tool]
    assert (first.parent_prompt_id, first.turn, first.source, first.line) == (None, 0, "d.jsonl", 1)
    messages = [{"role": "user", "content": "y"}]
    assert second.prompt_id == prompt_id(MODEL, identity, messages, [tool], first.prompt_id)
    assert (second.parent_prompt_id, second.turn) == (first.prompt_id, 1)


def test_rejects_have_the_keys_that_all_stages_share(tmp_path: Path) -> None:
    """Source, line, reason and at most 2,000 characters of the row."""
    write(tmp_path, {"prompt": "x"}, {"frage": "ü" * 5_000})
    summary = run(tmp_path)
    (reject,) = rejects(tmp_path)
    assert tuple(reject) == PROMPT_REJECT_KEYS
    assert len(reject["row"]) == 2_000
    assert summary.reasons == {"no prompt column": 1}


def test_each_row_is_a_conversation_a_duplicate_or_a_reject(tmp_path: Path) -> None:
    """The summary's figures add up to the rows read."""
    rows = [{"prompt": f"{n % 7}"} if n % 3 else {"prompt": ""} for n in range(30)]
    write(tmp_path, *rows)
    summary = run(tmp_path)
    assert summary.rows_read == 30
    assert summary.conversations + summary.duplicates + summary.rejected == 30
    assert summary.conversations == summary.prompts == len(prompts(tmp_path)) == 7
    assert summary.rejected == len(rejects(tmp_path)) == 10


def test_a_prompt_is_in_a_run_once_whatever_dataset_or_shape_it_comes_in(tmp_path: Path) -> None:
    """Duplicates are told by content, within a dataset and across the run's."""
    chat = [{"role": "user", "content": "x"}]
    write(tmp_path, {"prompt": "x"}, {"question": "x"}, {"messages": chat}, {"text": "y"})
    write(tmp_path, {"prompt": "y"}, {"prompt": "z"}, name="e.jsonl")
    seen: set[bytes] = set()
    assert run(tmp_path, seen=seen).duplicates == 2
    assert run(tmp_path, seen=seen, name="E", path="e.jsonl").duplicates == 1
    ids = [prompt.prompt_id for name in "DE" for prompt in prompts(tmp_path, name)]
    assert len(ids) == len(set(ids)) == 3
    assert {name.hex() for name in seen} == set(ids)


def test_a_dataset_put_before_a_frozen_one_does_not_repeat_its_prompts(tmp_path: Path) -> None:
    """The run file may grow at its head: ids of all frozen files count as seen."""
    write(tmp_path, {"prompt": "x"})
    write(tmp_path, {"prompt": "x"}, {"prompt": "y"}, name="e.jsonl")
    run(tmp_path)
    summary = run(tmp_path, name="E", path="e.jsonl", seen=set())
    assert (summary.duplicates, summary.prompts) == (1, 1)


def test_a_conversation_is_a_duplicate_only_as_a_whole(tmp_path: Path) -> None:
    """One that shares only its first turn is refused, since no id may stand twice."""
    talks = (["a", "b"], ["a", "b"], ["a"], ["a", "c"], ["a", "b", "c"], ["d", "b"])
    write(tmp_path, *({"turns": talk} for talk in talks))
    summary = run(tmp_path)
    assert (summary.conversations, summary.duplicates, summary.rejected) == (2, 2, 2)
    assert [reject["line"] for reject in rejects(tmp_path)] == [4, 5]
    assert summary.reasons == {"shared first turn": 2}
    assert [prompt.line for prompt in prompts(tmp_path)] == [1, 1, 6, 6]


def test_a_second_call_keeps_what_is_frozen(tmp_path: Path) -> None:
    """The file is not touched, the summary is the first call's, the ids are seen."""
    write(tmp_path, {"prompt": "x"}, {"prompt": ""})
    first = run(tmp_path)
    path = tmp_path / "run/prompts/D.parquet"
    before = (path.stat().st_ino, hashlib.sha256(path.read_bytes()).digest())
    seen: set[bytes] = set()
    again = run(tmp_path, seen=seen)
    assert (path.stat().st_ino, hashlib.sha256(path.read_bytes()).digest()) == before
    assert again.already_frozen
    assert again.changed is None
    assert not first.already_frozen
    assert (again.prompts, again.rejected, again.reasons) == (1, 1, first.reasons)
    assert seen == set(iter_ids(path))


def test_changed_sources_and_options_are_said_but_not_read(tmp_path: Path) -> None:
    """The sentence names what changed and what to do."""
    write(tmp_path, {"prompt": "x", "text": "t"})
    run(tmp_path)
    write(tmp_path, {"prompt": "x", "text": "t"}, {"prompt": "y", "text": "u"})
    summary = run(tmp_path, column="text")
    assert summary.prompts == 1
    assert summary.changed is not None
    for part in ("`column` was None and is 'text'", "changed since: d.jsonl", "another directory"):
        assert part in summary.changed
    (tmp_path / "d.jsonl").rename(tmp_path / "e.jsonl")
    assert "no such file" in str(run(tmp_path).changed)
    moved = str(run(tmp_path, path="e.jsonl").changed)
    assert "new since: e.jsonl; gone since: d.jsonl" in moved


@pytest.mark.parametrize(
    "other", [{"model": "a/b"}, {"sampling": Sampling(temperature=0.5)}], ids=["model", "sampling"]
)
def test_frozen_prompts_hold_for_one_target(tmp_path: Path, other: dict[str, Any]) -> None:
    """Another model or sampling is an error, since the ids would be others."""
    write(tmp_path, {"prompt": "x"})
    run(tmp_path)
    with pytest.raises(ConfigError, match=r"frozen for .* set it back, or start in another"):
        run(tmp_path, **other)
    assert run(tmp_path, sampling=Sampling(max_tokens=5)).prompts == 1


def test_strict_fails_on_prompts_that_were_frozen_with_rejects(tmp_path: Path) -> None:
    """It promises that every row is a prompt, whenever they were read."""
    write(tmp_path, {"prompt": "x"}, {"prompt": ""})
    run(tmp_path)
    with pytest.raises(InputError, match=r"prompts-D\.jsonl: 1 rows could not be used"):
        run(tmp_path, strict=True)


def test_a_file_that_is_not_frozen_prompts_is_not_taken_for_one(tmp_path: Path) -> None:
    """The error says which file, and to move it away."""
    write(tmp_path, {"prompt": "x"})
    (tmp_path / "run/prompts").mkdir(parents=True)
    (tmp_path / "run/prompts/D.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"D\.parquet: not a file of frozen prompts"):
        run(tmp_path)


def test_a_failed_call_leaves_no_file(tmp_path: Path) -> None:
    """Neither a final nor a temporary one, and the next call starts afresh."""
    write(tmp_path, {"prompt": "x"}, {"prompt": ""})
    with pytest.raises(InputError):
        run(tmp_path, strict=True)
    files = [path.name for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files == [".D.lock"]
    assert run(tmp_path).prompts == 1


def test_rejects_of_an_interrupted_call_are_replaced(tmp_path: Path) -> None:
    """The file of rejects is that of the frozen prompts, or absent."""
    write(tmp_path, {"prompt": "x"})
    (tmp_path / "run/rejects").mkdir(parents=True)
    (tmp_path / "run/rejects/prompts-D.jsonl").write_text("old\n")
    run(tmp_path)
    assert not (tmp_path / "run/rejects/prompts-D.jsonl").exists()


def test_chains_are_read_from_any_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With chains across row groups and batches, and a start within a chain."""
    monkeypatch.setattr(frozen, "GROUP_ROWS", 5)
    monkeypatch.setattr(frozen, "BATCH_ROWS", 3)
    write(tmp_path, *({"turns": [f"{n} {k}" for k in range(1 + n % 4)]} for n in range(40)))
    run(tmp_path)
    path = tmp_path / "run/prompts/D.parquet"
    chains = list(iter_chains(path))
    assert [row for row, _ in chains] == [p for p, x in enumerate(prompts(tmp_path)) if not x.turn]
    assert [len(chain) for _, chain in chains] == [1 + n % 4 for n in range(40)]
    for start in range(102):
        assert list(iter_chains(path, start)) == [chain for chain in chains if chain[0] >= start]
    assert [x.hex() for x in iter_ids(path)] == [prompt.prompt_id for prompt in prompts(tmp_path)]


def test_frozen_prompts_are_read_fast(tmp_path: Path) -> None:
    """At least 50,000 rows a second, and any row is near."""
    write(tmp_path, *({"prompt": f"{n} " + "word " * 100} for n in range(50_000)))
    run(tmp_path)
    path = tmp_path / "run/prompts/D.parquet"
    started = time.perf_counter()
    assert sum(1 for _ in iter_chains(path)) == 50_000
    assert time.perf_counter() - started < 1
    started = time.perf_counter()
    assert next(iter_chains(path, 49_000))[0] == 49_000
    assert time.perf_counter() - started < 0.2


CHILD = r"""
import re, sys
from pathlib import Path
from fleet.run_config import Dataset, Sampling
from producer.freeze import freeze
folder = Path(sys.argv[1])
dataset = Dataset(name="D", path=sys.argv[2])
def peak_mb():
    # Not ru_maxrss: that begins with the peak of the process that started this one.
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024
print("started", flush=True)
before = peak_mb()
print(freeze(dataset, folder, folder / "run", "a/b", Sampling(), seen=set()).prompts)
print(peak_mb() - before)
"""


def child(folder: Path, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, suffix: str) -> None:
    """200 MB take less than 20 MB more than 20 MB do."""
    small = peak_of(tmp_path / "small", suffix, rows=200)
    large = peak_of(tmp_path / "large", suffix, rows=2_000)
    assert large - small < 20


def peak_of(folder: Path, suffix: str, rows: int) -> int:
    """Megabytes that freezing rows of 100 kB takes beyond the imports."""
    folder.mkdir()
    text = random.Random(0).randbytes(50_000).hex()
    opening, between, closing = ("", "\n", "\n") if suffix == "jsonl" else ("[", ",\n", "]")
    with (folder / f"d.{suffix}").open("w") as file:
        file.write(opening)
        for n in range(rows):
            file.write(f'{between if n else ""}{{"prompt": "{n} {text}"}}')
        file.write(closing)
    output, _ = child(folder, f"d.{suffix}").communicate(timeout=60)
    _, prompts_frozen, megabytes = output.split()
    assert int(prompts_frozen) == rows
    return int(megabytes)


def test_a_killed_freeze_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    """And the next call freezes as if there had been none before."""
    write(tmp_path, *({"prompt": f"{n} " + "word " * 100} for n in range(60_000)))
    process = child(tmp_path, "d.jsonl")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    temporary = tmp_path / "run/prompts/.D.parquet.tmp"
    while not (temporary.exists() and temporary.stat().st_size > 10_000):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert not list(tmp_path.glob("run/*/[!.]*"))
    assert run(tmp_path).prompts == 60_000
    assert not temporary.exists()


def test_of_two_calls_at_once_one_freezes_and_the_other_finds_it(tmp_path: Path) -> None:
    """Two producers may start together; both go on with the same file."""
    write(tmp_path, *({"prompt": f"{n}"} for n in range(20_000)))
    processes = [child(tmp_path, "d.jsonl") for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].split()[1] for process in processes]
    assert outputs == ["20000", "20000"]
    assert len(prompts(tmp_path)) == 20_000
