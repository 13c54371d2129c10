"""Prompts that overlap with an evaluation set, and prompts that are nearly another's."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples_kit import Row, read

from fleet.errors import InputError
from gpu_stage.merge.contamination import EvaluationSets, read_prompts
from gpu_stage.merge.settings import EvaluationSet
from gpu_stage.merge.words import ngrams, words_of

Merge = Callable[..., Path]
PROMPTS = Path(__file__).parents[4] / "shared" / "data" / "prompts"
LONG = (
    "A train leaves the station at noon and travels north at sixty miles an hour while "
    "another leaves at one; when do they meet, and how far from the station are they then?"
)


def sets(tmp_path: Path, *prompts: str, name: str = "exam") -> EvaluationSet:
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"question": prompt}) + "\n" for prompt in prompts))
    return EvaluationSet(name, str(path))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LONG, True),
        (f"Answer this, please: {LONG.upper()} Think step by step.", True),
        (LONG.replace(",", " -- ").replace("?", "!!"), True),
        (" ".join(LONG.split()[:13]), True),
        (" ".join(LONG.split()[:12]), False),
        (" ".join(reversed(LONG.split())), False),
        ("What is two and two?", True),
        ("what is TWO and two", True),
        ("What is two and two? And three?", False),
        ("", False),
    ],
)
def test_thirteen_words_in_a_row_or_a_whole_short_prompt_overlap(
    tmp_path: Path, text: str, found: bool
) -> None:
    """Case and punctuation aside; fewer words in common are not enough."""
    exam = EvaluationSets([sets(tmp_path, LONG, "What is two and two?")])
    assert bool(exam.matches([words_of(text)])) == found


def test_each_set_is_named_and_counted(merged: Merge, tmp_path: Path) -> None:
    """A row that overlaps with two sets counts in both and is dropped once."""
    other = sets(tmp_path, LONG, "Who wrote it?", name="other")
    exam = sets(tmp_path, LONG, "What is two and two?")
    toml = "heldout_share = 0.0\n" + "".join(
        f"[[evaluation_sets]]\nname = '{one.name}'\npath = '{one.path}'\n" for one in (exam, other)
    )
    texts = [f"So: {LONG}", "What is two and two?", "Who wrote it?", "Fine."]
    folder = merged({"B1": [Row(text=text) for text in texts]}, toml=toml)
    record = json.loads((folder / "set.json").read_text())
    assert record["overall"]["dropped"] == {"contaminated: exam": 2, "contaminated: other": 1}
    assert record["evaluation_sets"] == {
        "exam": {"prompts": 2, "rows_matched": 2},
        "other": {"prompts": 2, "rows_matched": 2},
    }
    assert len(read(folder / "train")) == 1


@pytest.mark.parametrize(
    ("name", "prompts"), [("gsm8k_test", 1319), ("humaneval", 164), ("specbench", 560)]
)
def test_the_sets_of_the_field_are_read_and_found(name: str, prompts: int) -> None:
    """Every prompt of a real set overlaps with the set, and plain questions do not."""
    if not PROMPTS.is_dir():
        pytest.skip("../shared/data/prompts is absent")
    chosen = EvaluationSet(name, str(PROMPTS / f"{name}.jsonl"))
    exam = EvaluationSets([chosen])
    assert exam.prompts[name] == prompts
    assert all(exam.matches([words_of(f"{text}")]) for text in read_prompts(chosen))
    plain = "Tell me how bread is made at home, from the flour to the crust, in a few short steps."
    assert not exam.matches([words_of(plain)])


def test_parquet_sets_and_their_columns_are_read(tmp_path: Path) -> None:
    """A column may be named; messages are read for what the user says."""
    messages = [{"role": "system", "content": "no"}, {"role": "user", "content": "yes"}]
    path = tmp_path / "exam.parquet"
    pq.write_table(pa.table({"task": ["one"], "messages": [messages]}), path)
    assert list(read_prompts(EvaluationSet("exam", str(path), "task"))) == ["one"]
    assert list(read_prompts(EvaluationSet("exam", str(path)))) == ["yes"]


@pytest.mark.parametrize("column", [None, "instruction"])
def test_the_input_of_an_instruction_belongs_to_its_prompt(
    merged: Merge, tmp_path: Path, column: str | None
) -> None:
    """The prompt was sent with it, so it is found with it, by itself too, and a short one whole."""
    path = tmp_path / "exam.jsonl"
    asked = [
        {"instruction": "Summarise the text.", "input": LONG},
        {"instruction": "Translate.", "input": "Good day"},
        {"instruction": "Tell a joke.", "input": ""},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in asked))
    toml = f"heldout_share = 0.0\n[[evaluation_sets]]\nname = 'exam'\npath = '{path}'\n"
    toml += f"column = '{column}'\n" if column else ""
    met = (f"Summarise the text.\n\n{LONG}", LONG, "Translate.\n\nGood day", "Tell a joke.")
    fine = ("Summarise the text.", "Translate.", "Good day")
    folder = merged({"B1": [Row(text=text) for text in met + fine]}, toml=toml)
    record = json.loads((folder / "set.json").read_text())
    assert record["overall"]["dropped"] == {"contaminated: exam": 4}
    assert len(read(folder / "train")) == 3


def test_a_set_without_prompts_is_refused_by_line(tmp_path: Path) -> None:
    """A set that cannot be read would look for nothing."""
    path = tmp_path / "exam.jsonl"
    path.write_text('{"question": "a"}\n{"task": "b"}\n')
    with pytest.raises(InputError, match=r"exam\.jsonl:2: no prompt found for evaluation set exam"):
        EvaluationSets([EvaluationSet("exam", str(path))])
    path.write_text('{"question": ')
    with pytest.raises(InputError, match=r"exam\.jsonl:1: not JSON"):
        EvaluationSets([EvaluationSet("exam", str(path))])
    with pytest.raises(InputError, match="cannot be read"):
        EvaluationSets([EvaluationSet("exam", str(tmp_path / "none.jsonl"))])


def test_near_duplicates_go_when_asked(merged: Merge) -> None:
    """A word changed in a long prompt is nearly the same; the better known one stays."""
    base = " ".join(f"word{number}" for number in range(200))
    rows = [
        Row(text=base, fidelity="near"),
        Row(text=base.replace("word150", "other"), fidelity="exact"),
        Row(text=" ".join(f"word{number}" for number in range(100, 300))),
        Row(text="Short."),
        Row(text="Other."),
    ]
    plain = merged({"B1": rows}, toml="heldout_share = 0.0")
    assert len(read(plain / "train")) == 5
    folder = merged({"B1": rows}, toml="heldout_share = 0.0\n[near_duplicates]\nthreshold = 0.8")
    record = json.loads((folder / "set.json").read_text())
    assert record["overall"]["dropped"] == {"near duplicate": 1}
    assert rows[0].prompt_id not in {row["prompt_id"] for row in read(folder / "train")}


def test_turns_of_one_conversation_are_not_each_others_duplicates(merged: Merge) -> None:
    """They share their beginning, and go or stay together."""
    base = " ".join(f"word{number}" for number in range(200))
    rows = []
    for text, fidelity in ((base, "exact"), (f"{base} more", "counted")):
        first = [{"role": "user", "content": text}]
        later = [*first, {"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}]
        rows += [
            Row(messages=first, fidelity=fidelity),
            Row(messages=later, turn=1, fidelity=fidelity),
        ]
    folder = merged({"B1": rows}, toml="heldout_share = 0.0\n[near_duplicates]")
    kept = {row["prompt_id"] for row in read(folder / "train")}
    assert kept == {rows[0].prompt_id, rows[1].prompt_id}


def test_the_measure_is_the_share_of_shingles(merged: Merge) -> None:
    """Pairs well above the threshold go, pairs well below it stay: 40 of each."""
    rng = np.random.default_rng(0)

    def variant(words: list[str], changed: int) -> str:
        places = {*range(0, 10 * changed, 10)}
        return " ".join(f"x{n}" if n in places else word for n, word in enumerate(words))

    above, below = [], []
    for number in range(40):
        words = [f"w{number}x{n}" for n in rng.permutation(200)]
        above += [" ".join(words), variant(words, 2)]  # Jaccard 0.92
        words = [f"v{number}x{n}" for n in rng.permutation(200)]
        below += [" ".join(words), variant(words, 14)]  # Jaccard 0.49
    toml = "heldout_share = 0.0\n[near_duplicates]\nthreshold = 0.7"
    folder = merged({"B1": [Row(text=text) for text in above + below]}, toml=toml)
    record = json.loads((folder / "set.json").read_text())
    assert record["overall"]["dropped"] == {"near duplicate": 40}


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "ü", "日", "9"]), max_size=40), st.integers(1, 13))
def test_an_ngram_has_one_number(words: list[str], n: int) -> None:
    """Equal runs of words have equal numbers, different ones different."""
    runs = [tuple(words[k : k + n]) for k in range(max(1, len(words) - n + 1))] if words else []
    numbers = ngrams(words, n).tolist()
    assert len(numbers) == len(runs)
    assert len(set(numbers)) == len(set(runs))
    assert len(set(zip(runs, numbers, strict=True))) == len(set(runs))


def test_scripts_without_spaces_have_words() -> None:
    """Each character of Chinese, Japanese and Korean is one."""
    assert words_of("GPT-4は速い!") == ["gpt", "4", "は", "速", "い"]
