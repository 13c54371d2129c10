"""What a merge takes, what it leaves out and says so, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from samples_kit import Row, read, write_run

from fleet.errors import ConfigError, FleetError, InputError
from gpu_stage.merge import merge
from gpu_stage.merge.record import check_balance
from gpu_stage.merge.schema import SET
from gpu_stage.merge.settings import MergeFile, load

Merge = Callable[..., Path]
ALL = "heldout_share = 0.0\n"


def questions(count: int, **options: Any) -> list[Row]:
    return [Row(text=f"question {number}", **options) for number in range(count)]


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "set.json").read_text())
    return found


def dropped(folder: Path) -> dict[str, int]:
    found: dict[str, int] = record(folder)["overall"]["dropped"]
    return found


def texts_kept(folder: Path, rows: list[Row]) -> set[str]:
    kept = {row["prompt_id"] for row in read(folder / "train")}
    return {row.text for row in rows if row.prompt_id in kept}


def test_a_set_holds_samples_as_they_were_tokenised(merged: Merge) -> None:
    """Ids, spans, lengths and where a sample comes from arrive as they left."""
    row = Row(prompt_ids=[7, 8], completion_ids=[9, 10, 11], fidelity="exact", cost_usd=0.5)
    folder = merged({"B1": [row]}, toml=ALL)
    (found,) = read(folder / "train")
    assert found["input_ids"] == [7, 8, 9, 10, 11]
    assert found["loss_spans"] == [{"start": 2, "end": 5}]
    assert (found["run"], found["dataset"], found["provider"]) == ("run0", "B1", "Alpha")
    assert (found["fidelity"], found["cost_usd"], found["turn"]) == ("exact", 0.5, 0)
    assert pq.read_schema(folder / "train" / "part-00000.parquet").equals(SET)


@pytest.mark.parametrize(
    ("row", "toml", "reason"),
    [
        (Row(fidelity="rejected"), "", "fidelity: rejected"),
        (Row(fidelity="unverified"), "", "fidelity: unverified"),
        (Row(fidelity="near"), 'fidelity = ["exact", "counted"]', "fidelity: near"),
        (Row(finish_reason="length"), "", "truncated"),
        (Row(provider="Beta"), 'ignore_providers = ["Beta"]', "provider"),
        (Row(provider="Beta"), 'only_providers = ["Alpha"]', "provider"),
        (Row(completion_ids=range(100)), "max_length_tokens = 50", "too long"),
        (Row(completion_ids=[4]), "min_completion_tokens = 2", "too short"),
    ],
)
def test_what_a_filter_leaves_out_is_counted_under_its_name(
    merged: Merge, row: Row, toml: str, reason: str
) -> None:
    """The row is not in the set, and its reason is in the record and the list."""
    folder = merged({"B1": [row, Row(text="another")]}, toml=f"{ALL}[filters]\n{toml}")
    assert dropped(folder) == {reason: 1}
    assert len(read(folder / "train")) == 1
    (left_out,) = pq.read_table(folder / "dropped.parquet").to_pylist()
    assert (left_out["prompt_id"], left_out["reason"]) == (row.prompt_id, reason)


def test_unverified_and_truncated_rows_come_when_asked_for(merged: Merge) -> None:
    """They are the user's to take."""
    rows = [Row(fidelity="unverified"), Row(text="another", finish_reason="length")]
    toml = f'{ALL}[filters]\ntruncated = true\nfidelity = ["counted", "unverified"]'
    assert len(read(merged({"B1": rows}, toml=toml) / "train")) == 2


def test_providers_that_failed_the_audit_are_left_out(tmp_path: Path) -> None:
    """`not_failed` drops those that failed, `passed` also those that were not judged."""
    rows = [Row(text=name, provider=name) for name in ("Good", "Bad", "Unknown")]
    run = write_run(tmp_path / "run", {"B1": rows})
    (run / "audit.json").write_text('{"verdicts": {"Good": "passed", "Bad": "failed"}, "z": 1}')
    for audit, kept in (("not_failed", {"Good", "Unknown"}), ("passed", {"Good"})):
        (tmp_path / "merge.toml").write_text(f'{ALL}[filters]\naudit = "{audit}"')
        merge([run], tmp_path / audit, load(tmp_path / "merge.toml"))
        assert {row["provider"] for row in read(tmp_path / audit / "train")} == kept
        assert record(tmp_path / audit)["runs"][0]["audit"]["Bad"] == "failed"


def test_an_audit_that_was_not_made_is_asked_for(merged: Merge) -> None:
    """A filter that would pass everybody for want of an audit says so instead."""
    with pytest.raises(ConfigError, match=r"no audit\.json; audit the run first"):
        merged({"B1": [Row()]}, toml='[filters]\naudit = "passed"')


def test_of_one_prompt_the_best_known_ids_stay(merged: Merge) -> None:
    """Higher fidelity wins over the earlier run, and the earlier run over the later."""
    first = [Row(text="a", fidelity="near"), Row(text="b", provider="First")]
    second = [Row(text="a", fidelity="exact"), Row(text="b", provider="Second")]
    folder = merged({"B1": first}, {"B2": second}, toml=ALL)
    assert dropped(folder) == {"same prompt": 2}
    kept = {row["prompt_id"]: row for row in read(folder / "train")}
    assert kept[first[0].prompt_id]["fidelity"] == "exact"
    assert kept[first[1].prompt_id]["provider"] == "First"


def test_equal_messages_under_another_sampling_are_one_prompt(merged: Merge) -> None:
    """Another temperature is another prompt_id, and still the same prompt to a draft."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = [Row(), Row(sampling="hotter"), Row(tools=tools)]
    folder = merged({"B1": rows}, toml=ALL)
    assert dropped(folder) == {"same messages": 1}
    assert rows[2].prompt_id in {row["prompt_id"] for row in read(folder / "train")}


def test_a_cap_keeps_whole_conversations_up_to_it(merged: Merge) -> None:
    """No more of the target's tokens than the cap, and as many as fit."""
    toml = f'{ALL}[[datasets]]\nname = "B1"\ncap_tokens = 32'
    folder = merged({"B1": questions(20), "B2": [Row(text="other")]}, toml=toml)
    sizes = record(folder)["datasets"]
    assert sizes["B1"]["train"]["loss_tokens"] == 30
    assert dropped(folder) == {"over the cap": 10}
    assert sizes["B2"]["train"]["rows"] == 1


def test_weights_are_shares_of_what_there_is(merged: Merge) -> None:
    """Twice the weight is twice the tokens, as many as the scarcer dataset allows."""
    toml = f'{ALL}[[datasets]]\nname = "A"\nweight = 2\n[[datasets]]\nname = "B"\nweight = 1'
    some = [Row(text=f"some {number}") for number in range(30)]
    folder = merged({"A": questions(30), "B": some}, toml=toml)
    sizes = record(folder)["datasets"]
    assert sizes["A"]["train"]["loss_tokens"] == 90
    assert sizes["B"]["train"]["loss_tokens"] == 45


def test_a_weight_with_nothing_to_weigh_is_refused(merged: Merge) -> None:
    """A mixture that cannot be had is an error, not an empty set."""
    toml = '[[datasets]]\nname = "A"\nweight = 1\n[[datasets]]\nname = "B"\nweight = 1'
    with pytest.raises(ConfigError, match="dataset B has a weight and no row of it is left"):
        merged({"A": questions(3), "B": [Row(text="b", fidelity="rejected")]}, toml=toml)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("seeed = 1", "unknown field `seeed`"),
        ("heldout_share = 1.0", r"heldout_share = 1\.0: must be in \[0, 1\)"),
        ("[filters]\nfidelity = ['sure']", r"filters\.fidelity\[0\] = 'sure'"),
        ("[filters]\nfidelity = []", r"filters\.fidelity is empty"),
        ("[filters]\nmax_length_tokens = -1", "max_length_tokens = -1"),
        ("[near_duplicates]\nthreshold = 0.0", "threshold = 0"),
        ("[[datasets]]\nname = 'B1'\n[[datasets]]\nname = 'B1'", r"\[\[datasets\]\] repeats"),
        ("[[datasets]]\nname = 'B9'", r"\[\[datasets\]\]: no row is of 'B9'; there are B1"),
        ("[filters]\nonly_providers = ['alpha']", "no row is of 'alpha'; there are Alpha"),
        ("part_tokens = 0", "part_tokens = 0: must be 1 or more"),
    ],
)
def test_a_wrong_setting_is_named(merged: Merge, toml: str, message: str) -> None:
    """The message has the key, the value and what may stand there."""
    with pytest.raises(ConfigError, match=message):
        merged({"B1": [Row()]}, toml=toml)


@pytest.mark.parametrize(
    ("spans", "what"), [([], "all zeros"), ([(0, 6)], "all ones")], ids=["zeros", "ones"]
)
def test_a_mask_of_one_value_is_refused_by_name(
    merged: Merge, spans: list[tuple[int, int]], what: str
) -> None:
    """Others trained on such masks for days: row, prompt and dataset are named, and no set made."""
    rows = [Row(text="fine"), Row(spans=spans)]
    with pytest.raises(InputError, match=rf"row 2, prompt {rows[1].prompt_id} .*B1.*{what}"):
        merged({"B1": rows})


@pytest.mark.parametrize("spans", [[(3, 99)], [(3, 9)], [(-1, 2)]])
def test_spans_that_leave_the_ids_are_refused(merged: Merge, spans: list[tuple[int, int]]) -> None:
    """A mask that does not fit its ids would be silently wrong."""
    rows = [Row(prompt_ids=range(200), text="long"), Row(spans=spans)]
    with pytest.raises(InputError, match=f"{rows[1].prompt_id}|all ones"):
        merged({"B1": rows}, toml=ALL)


def test_a_run_without_samples_is_refused(tmp_path: Path) -> None:
    """It says which command makes them."""
    run = write_run(tmp_path / "run", {"B1": [Row()]})
    next(run.glob("samples/*/*")).unlink()
    with pytest.raises(InputError, match=r"has no samples; run `gpu-stage tokens .*run` first"):
        merge([run], tmp_path / "set", MergeFile())


def test_samples_of_fewer_rows_are_refused(tmp_path: Path) -> None:
    """A samples file stands for every row of its completions."""
    run = write_run(tmp_path / "run", {"B1": [Row(text="a"), Row(text="b")]})
    short = write_run(tmp_path / "short", {"B1": [Row(text="a")]})
    name = "samples/dataset=B1/part-0000.parquet"
    (short / name).rename(run / name)
    with pytest.raises(InputError, match="1 rows for 2 completions; move it away"):
        merge([run], tmp_path / "set", MergeFile())


def test_samples_of_other_rows_are_refused(tmp_path: Path) -> None:
    """Samples that do not stand beside their completions are not guessed at."""
    run = write_run(tmp_path / "run", {"B1": [Row(text="a"), Row(text="b")]})
    swapped = write_run(tmp_path / "swapped", {"B1": [Row(text="b"), Row(text="a")]})
    name = "samples/dataset=B1/part-0000.parquet"
    (swapped / name).rename(run / name)
    with pytest.raises(InputError, match="row 1 is of prompt"):
        merge([run], tmp_path / "set", MergeFile())


def test_an_existing_folder_is_refused(merged: Merge, tmp_path: Path) -> None:
    """A set is never overwritten."""
    folder = merged({"B1": questions(3)})
    with pytest.raises(ConfigError, match="is there already; name another folder"):
        merge([folder.parent / "run0"], folder, MergeFile())


def test_two_runs_of_one_name_are_refused(tmp_path: Path) -> None:
    """A row would not say which it came from."""
    runs = [write_run(tmp_path / place / "run", {"B1": [Row()]}) for place in ("a", "b")]
    with pytest.raises(ConfigError, match="two runs are called 'run'"):
        merge(runs, tmp_path / "set", MergeFile())


def test_runs_of_two_models_are_refused(tmp_path: Path) -> None:
    """A draft has one target."""
    for name in ("a", "b"):
        write_run(tmp_path / name, {"B1": [Row()]})
        (tmp_path / name / "run.toml").write_text(
            f"[run]\nname = '{name}'\nmodel = 'x/{name}'\n[[datasets]]\nname = 'B1'\npath = 'p'"
        )
    with pytest.raises(ConfigError, match="different models"):
        merge([tmp_path / "a", tmp_path / "b" / "run.toml"], tmp_path / "set", MergeFile())


def test_nothing_to_train_on_is_refused_with_the_reasons(merged: Merge) -> None:
    """An empty set says where its rows went, and leaves no folder."""
    with pytest.raises(InputError, match=r"none is left to train on \(dropped: 2 truncated\)"):
        merged({"B1": questions(2, finish_reason="length")})


def test_what_fails_leaves_nothing_behind(merged: Merge, tmp_path: Path) -> None:
    """Neither a set nor its unfinished folder."""
    with pytest.raises(FleetError):
        merged({"B1": [Row(spans=[])]})
    assert not [p for p in (tmp_path / "merge1").iterdir() if "set" in p.name]


def test_token_counts_are_of_what_the_target_wrote(merged: Merge) -> None:
    """Counted over the loss spans of train alone: no prompt, nothing held out."""
    rows = [
        Row(text="a", prompt_ids=[9, 9], completion_ids=[1, 2, 2]),
        Row(text="b", prompt_ids=[3], completion_ids=[5, 1, 5], spans=[(1, 2), (3, 4)]),
    ]
    folder = merged({"B1": rows}, toml=ALL)
    counts = np.load(folder / "token_counts.npy")
    assert counts.dtype == np.int64
    assert counts.tolist() == [0, 1, 2, 0, 0, 2]
    half = merged({"B1": questions(200)}, toml="heldout_share = 0.5")
    train = record(half)["overall"]["train"]["loss_tokens"]
    assert np.load(half / "token_counts.npy").sum() == train < 600


def test_the_card_says_what_the_record_says(merged: Merge) -> None:
    """Counts, prices, providers, fidelity, reasons and hashes are there to read."""
    rows = [*questions(5, fidelity="exact"), Row(provider="Beta", fidelity="rejected")]
    folder = merged({"B1": rows}, toml=ALL)
    text, found = (folder / "card.md").read_text(), record(folder)
    assert "| B1 | train | 5 | 5 | 30 | 15 | 0.500 | 0.0050 |" in text
    assert "| Alpha | 5 | 15 | 0.0050 | 333.333 | exact 5 | – |" in text
    assert "| B1 | 6 | fidelity: rejected | 1 |" in text
    assert all(hash_ in text for hash_ in found["files"].values())
    assert found["runs"][0]["samples"][0]["sha256"] in text
    assert found["overall"]["train"]["mask_density"] == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropped": {"truncated": 2}}, "3 rows read, 2 kept and 2 dropped"),
        ({"heldout": {"rows": 0}, "dropped": {"truncated": 2}}, "1 rows written to heldout"),
    ],
)
def test_rows_that_do_not_balance_are_no_set(
    merged: Merge, change: dict[str, Any], message: str
) -> None:
    """A row that is neither kept nor dropped, or not in the files, is noticed."""
    folder = merged({"B1": questions(200)}, toml="heldout_share = 0.5")
    counts = {"read": {"rows": 3}, "train": {"rows": 1}, "heldout": {"rows": 1}}
    for side in ("train", "heldout"):
        for path in (folder / side).glob("*.parquet"):
            pq.write_table(pq.read_table(path).slice(0, 1), path)
    check_balance({**counts, "dropped": {"truncated": 1}}, {}, folder)
    with pytest.raises(InputError, match=message):
        check_balance({**counts, "dropped": {"truncated": 1}, **change}, {}, folder)
