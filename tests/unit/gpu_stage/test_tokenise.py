"""A part of completions becomes a part of samples, once, whole, row for row."""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import completions_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.errors import InputError
from gpu_stage import claimed_file, sample_file
from gpu_stage.samples import SAMPLES, samples_of
from gpu_stage.tokenise import Outcome

Make = Callable[[Path], Outcome]


def test_every_completion_has_its_row_in_order(run: Path, make: Make) -> None:
    """Accepted or refused, a completion's sample stands in the same place."""
    texts = ["one", "two, longer", "", "four"]
    part = kit.write_part(run, [kit.row(n, text) for n, text in enumerate(texts)])
    assert make(part) is Outcome.MADE
    found = kit.samples(run, part)
    assert [row["prompt_id"] for row in found] == [f"{n:032x}" for n in range(4)]
    assert [row["fidelity"] for row in found] == ["counted", "counted", "rejected", "counted"]
    assert [row["reason"] for row in found] == [None, None, "empty", None]
    assert pq.read_schema(samples_of(run, part)).equals(SAMPLES)


def test_a_sample_is_prefix_and_completion_with_its_mask(run: Path, make: Make) -> None:
    """Ids, lengths, mask, counts and money stand in their columns."""
    part = kit.write_part(run, [kit.row(0, "Hm.", off=1)])
    make(part)
    (row,) = kit.samples(run, part)
    start, length = kit.PROMPT_TOKENS, len("Hm.") + 1
    assert len(row["input_ids"]) == start + length
    assert row["loss_spans"] == [{"start": start, "end": start + length}]
    assert (row["prompt_length"], row["completion_length"]) == (start, length)
    assert (row["completion_found"], row["completion_billed"]) == (length, length + 1)
    assert (row["fidelity"], row["provider"]) == ("near", "Alpha")
    assert (row["endpoint"], row["finish_reason"], row["cost_usd"]) == ("alpha/int4", "stop", 0.001)


def test_what_is_made_is_left_alone(run: Path, make: Make) -> None:
    """A part that has its samples is not written again."""
    part = kit.write_part(run, [kit.row(0)])
    make(part)
    before = samples_of(run, part).stat()
    assert make(part) is Outcome.UP_TO_DATE
    after = samples_of(run, part).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(path.name for path in samples_of(run, part).parent.iterdir()) == [part.name]


def test_another_tolerance_makes_the_part_again(run: Path, make: Make, model: Path) -> None:
    """What the run file asks of samples is part of their recipe."""
    part = kit.write_part(run, [kit.row(0, off=2)])
    make(part)
    assert kit.samples(run, part)[0]["fidelity"] == "near"
    kit.write_run(run, model, "[tokens]\nnear_tokens = 1\nnear_share = 0.0")
    assert make(part) is Outcome.MADE
    assert kit.samples(run, part)[0]["reason"] == "completion count off"


def test_another_tokenizer_makes_the_part_again(
    run: Path, make: Make, model: Path, tmp_path: Path
) -> None:
    """The files of the target's folder count, wherever they lie."""
    part = kit.write_part(run, [kit.row(0)])
    make(part)
    moved = kit.write_model(tmp_path / "moved")
    kit.write_run(run, moved)
    assert make(part) is Outcome.UP_TO_DATE
    config = json.loads((moved / "tokenizer_config.json").read_text())
    config["chat_template"] = config["chat_template"].replace("<|im_end|>", "<|im_end|> ")
    (moved / "tokenizer_config.json").write_text(json.dumps(config))
    assert make(part) is Outcome.MADE


def test_offsets_and_truncation_follow_the_run_file(run: Path, make: Make, model: Path) -> None:
    """An offset is one provider's; truncated answers are samples where the run says so."""
    rows = [kit.row(0, off=-1), kit.row(1, off=-1, provider="Beta")]
    rows.append(kit.row(2, finish_reason="length"))
    part = kit.write_part(run, rows)
    make(part)
    assert [row["fidelity"] for row in kit.samples(run, part)] == ["near", "near", "rejected"]
    kit.write_run(run, model, "[tokens]\ntruncated = true\ncompletion_offsets = { Alpha = -1 }")
    make(part)
    assert [row["fidelity"] for row in kit.samples(run, part)] == ["counted", "near", "counted"]


def test_a_provider_that_was_never_allowed_is_refused(run: Path, make: Make) -> None:
    """Who was allowed at any start of the run counts; who never was does not."""
    names = ["Alpha", "Beta", "Refused"]
    part = kit.write_part(run, [kit.row(n, provider=name) for n, name in enumerate(names)])
    kit.allow(run, "Alpha")
    make(part)
    reasons = [row["reason"] for row in kit.samples(run, part)]
    assert reasons == [None, "wrong provider", "wrong provider"]
    kit.allow(run, "Beta")
    make(part)
    assert [row["reason"] for row in kit.samples(run, part)] == [None, None, "wrong provider"]


ODD: list[tuple[dict[str, Any], str]] = [
    ({"response": "<html>"}, "no answer"),
    ({"response": ""}, "no answer"),
    ({"response": "[" * 100_000}, "no answer"),
    ({"messages": "{}"}, "unrenderable"),
    ({"messages": "["}, "unrenderable"),
    ({"messages": '[{"role": "user", "content": "\\ud83d"}]'}, "half a character"),
    ({"messages": "[" * 100_000}, "unrenderable"),
    ({"tools": "[7]"}, "unrenderable"),
    ({"messages": '[{"role": "user", "content": "a", "name": 5}]'}, "unrenderable"),
    ({"messages": '[{"role": "assistant", "content": "a", "reasoning": {}}]'}, "unrenderable"),
    ({"messages": '[{"role": "assistant", "content": "a", "tool_calls": 5}]'}, "unrenderable"),
]


@pytest.mark.parametrize(("odd", "reason"), ODD)
def test_no_row_stops_its_part(run: Path, make: Make, odd: dict[str, Any], reason: str) -> None:
    """What cannot be read is a rejected sample with a reason; its neighbours are samples."""
    part = kit.write_part(run, [kit.row(0), kit.row(1, **odd), kit.row(2)])
    make(part)
    assert [row["reason"] for row in kit.samples(run, part)] == [None, reason, None]


def test_a_count_that_no_column_holds_is_no_count(run: Path, make: Make) -> None:
    """A response may say anything."""
    part = kit.write_part(run, [kit.row(0, off=2**40)])
    make(part)
    (row,) = kit.samples(run, part)
    assert (row["fidelity"], row["completion_billed"]) == ("rejected", None)


def test_ids_that_came_with_a_response_are_the_sample(run: Path, make: Make) -> None:
    """`token_ids` beside the message make a sample exact."""
    ids = list(range(65, 70))
    part = kit.write_part(run, [kit.row(0)])
    make(part)
    tail = kit.samples(run, part)[0]["input_ids"][kit.PROMPT_TOKENS :]
    exact = kit.write_part(run, [kit.row(0, token_ids=tail), kit.row(1, token_ids=ids)])
    make(exact)
    assert [row["fidelity"] for row in kit.samples(run, exact)] == ["exact", "counted"]


def test_what_a_dead_process_left_is_written_over(run: Path, make: Make) -> None:
    """A torn temporary file does not reach the samples, and does not stay."""
    part = kit.write_part(run, [kit.row(0)])
    torn = claimed_file.temporary_of(samples_of(run, part))
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"PAR1 torn" * 1000)
    assert make(part) is Outcome.MADE
    assert len(kit.samples(run, part)) == 1
    assert not torn.exists()


def test_a_samples_file_that_is_torn_is_made_again(run: Path, make: Make) -> None:
    """A damaged disk costs nothing but time."""
    part = kit.write_part(run, [kit.row(0)])
    make(part)
    samples_of(run, part).write_bytes(b"PAR1")
    assert make(part) is Outcome.MADE


def test_of_two_processes_one_makes_a_part(run: Path, make: Make) -> None:
    """While one has claimed the part, another lets it be, and disturbs nothing."""
    part = kit.write_part(run, [kit.row(0)])
    path = samples_of(run, part)
    with claimed_file.claim(path) as file:
        assert file is not None
        file.write(b"half")
        assert make(part) is Outcome.BUSY
        assert claimed_file.claimed(path)
        assert claimed_file.temporary_of(path).read_bytes() in (b"", b"half")
    assert not claimed_file.claimed(path)
    assert make(part) is Outcome.MADE


def test_a_claim_that_comes_late_leaves_the_finished_file_alone(
    run: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened as another's temporary file may be its finished one by the time it is
    locked: the other ends between the two."""
    part = kit.write_part(run, [kit.row(0)])
    make(part)
    path = samples_of(run, part)
    temporary, whole = claimed_file.temporary_of(path), path.read_bytes()
    path.rename(temporary)
    lock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        temporary.rename(path)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with claimed_file.claim(path) as file:
        assert file is None
    assert path.read_bytes() == whole


def test_a_failure_leaves_no_file(run: Path, make: Make) -> None:
    """A part that cannot be read is named, and has no samples."""
    part = kit.write_part(run, [kit.row(0)])
    pq.write_table(pa.table({"prompt_id": ["x"]}), part)
    with pytest.raises(InputError, match=part.name):
        make(part)
    assert list(samples_of(run, part).parent.iterdir()) == []


def test_rows_and_tokens_are_read_off_the_footer(run: Path, make: Make) -> None:
    """What a worker elsewhere has made is counted without reading it."""
    part = kit.write_part(run, [kit.row(0), kit.row(1)])
    make(part)
    tokens = sum(len(row["input_ids"]) for row in kit.samples(run, part))
    assert sample_file.sizes(samples_of(run, part)) == (2, tokens)
