"""The report: what became of the completions, by dataset and provider, from the files alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import completions_kit as kit
from rich.console import Console

from fleet import run_config
from gpu_stage.offset_notes import Note
from gpu_stage.samples import samples_of
from gpu_stage.tally import WORST
from gpu_stage.token_report import make_report
from gpu_stage.token_tables import show_report
from gpu_stage.tokenise import Outcome

Make = Callable[[Path], Outcome]


def report(run: Path) -> dict[str, Any]:
    """The report on a run as its file stands."""
    return make_report(run_config.load(run / "run.toml"))


def group(found: dict[str, Any], dataset: str, provider: str) -> dict[str, Any]:
    """The one of a dataset and provider."""
    (one,) = (
        one for one in found["groups"] if (one["dataset"], one["provider"]) == (dataset, provider)
    )
    return dict(one)


def test_shares_reasons_and_differences_by_dataset_and_provider(run: Path, make: Make) -> None:
    """Each row is counted once, in its group."""
    rows = [kit.row(0), kit.row(1, off=2), kit.row(2, off=50), kit.row(3, "")]
    make(kit.write_part(run, rows))
    make(kit.write_part(run, [kit.row(4, provider="Beta")]))
    make(kit.write_part(run, [kit.row(5)], dataset="B4"))
    found = report(run)
    alpha = group(found, "B3", "Alpha")
    assert alpha["rows"] == 4
    assert alpha["fidelity"] == {"counted": 1, "near": 1, "rejected": 2}
    assert alpha["reasons"] == {"completion count off": 1, "empty": 1}
    assert alpha["completion_differences"] == {"0": 1, "2": 1, "more": 1}
    assert alpha["prompt_differences"] == {"0": 3}
    assert group(found, "B3", "Beta")["rows"] == group(found, "B4", "Alpha")["rows"] == 1
    assert (found["rows"], sum(found["fidelity"].values())) == (6, 6)


def test_the_report_lies_beside_the_samples(run: Path, make: Make) -> None:
    """`samples/report.json` is what was returned."""
    make(kit.write_part(run, [kit.row(0)]))
    found = report(run)
    assert json.loads((run / "samples/report.json").read_text("utf-8")) == found


def test_the_worst_come_with_their_counts_and_text(run: Path, make: Make) -> None:
    """The furthest off first, no more than a few, found again among the completions."""
    rows = [kit.row(n, f"answer {n}", off=n) for n in range(WORST + 3)]
    make(kit.write_part(run, rows))
    make(kit.write_part(run, [kit.row(99, "the worst of all", off=-15, reasoning="Hm. ")]))
    worst = group(report(run), "B3", "Alpha")["worst"]
    assert [row["prompt_id"][-2:] for row in worst] == ["63", "05", "04"]
    assert worst[0]["text"] == "Hm. the worst of all"
    assert worst[0]["completion_found"] - worst[0]["completion_billed"] == 15


def test_a_constant_is_called_out_with_what_to_do(run: Path, make: Make, model: Path) -> None:
    """An end token that is not billed shows over both datasets, and is taken off by a key.

    Answers that were cut off have none, and do not count.
    """
    kit.write_run(run, model, "[tokens]\ntruncated = true")
    cut = [kit.row(n, provider='In "c"', finish_reason="length") for n in range(40, 45)]
    rows = [kit.row(n, off=-1, provider='In "c"') for n in range(24)]
    make(kit.write_part(run, [*rows[:12], *cut, kit.row(98), kit.row(99)]))
    make(kit.write_part(run, [*rows[12:], kit.row(97, provider='In "c"')], dataset="B4"))
    (note,) = report(run)["notes"]
    assert (note["what"], note["offset"], note["rows"], note["of"]) == ("completion", -1, 24, 25)
    assert "completion −1 on 96% of 25: it does not bill the end token" in note["sentence"]
    _, _, setting = note["sentence"].partition("set tokens.")
    table = f"[tokens]\n{setting.removesuffix(' to take it off')}"
    kit.write_run(run, model, table)
    assert run_config.load(run / "run.toml").tokens.completion_offsets == {'In "c"': -1}
    assert "takes it off" in report(run)["notes"][0]["sentence"]


def test_a_constant_on_prompts_is_another_template(run: Path, make: Make) -> None:
    """It is not something to take off unseen."""
    usage = {"prompt_tokens": kit.PROMPT_TOKENS + 9, "completion_tokens": 4}
    choice = {"message": {"content": "Hm."}, "finish_reason": "stop"}
    response = json.dumps({"provider": "Alpha", "choices": [choice], "usage": usage})
    make(kit.write_part(run, [kit.row(n, response=response) for n in range(20)]))
    (note,) = report(run)["notes"]
    assert (note["what"], note["offset"]) == ("prompt", 9)
    assert "another template" in note["sentence"]


def test_a_setting_that_fits_no_more_is_reported(run: Path, make: Make, model: Path) -> None:
    """A provider that has begun to bill the end token would be judged wrongly."""
    kit.write_run(run, model, "[tokens]\ncompletion_offsets = { Alpha = -1 }")
    make(kit.write_part(run, [kit.row(n) for n in range(30)]))
    (note,) = report(run)["notes"]
    assert (note["offset"], note["taken_off"]) == (0, -1)
    assert "takes −1 off" in note["sentence"]


def test_parts_without_samples_are_passed_over(run: Path, make: Make) -> None:
    """A report can be had while others are made."""
    make(kit.write_part(run, [kit.row(0)]))
    kit.write_part(run, [kit.row(1)])
    assert report(run)["rows"] == 1


def test_the_tables_have_room_for_odd_names(run: Path, make: Make) -> None:
    """Brackets in a provider's name or in a text are no markup, and none is no name."""
    odd = kit.row(0, "[bold] text [/]", off=3, provider="[red]")
    nobody = kit.row(1, response=json.dumps({"choices": []})) | {"provider": None}
    part = kit.write_part(run, [odd, nobody])
    make(part)
    console = Console(width=200, record=True, quiet=False, file=(run / "out.txt").open("w"))
    show_report(console, report(run))
    text = console.export_text()
    assert "[red]" in text and "[bold] text [/]" in text and "unknown" in text
    assert samples_of(run, part).exists()


def test_too_few_rows_correct_no_offset() -> None:
    """A handful of counts says nothing of an offset that the run file takes off."""
    few = Note("Inceptron", "completion", 0, 3, 3, -1)
    assert few.sentence == (
        "Inceptron: 3 completion counts are too few to say whether −1, which the run file takes "
        "off, is right"
    )
    assert "correct tokens.completion_offsets" in replace(few, rows=18, of=20).sentence


def test_a_note_says_the_share() -> None:
    """Of how many rows, and the sign as people write it."""
    note = Note("Inceptron", "completion", -1, 1180, 1204, 0)
    assert note.sentence == (
        "Inceptron: completion −1 on 98% of 1,204: it does not bill the end token; set "
        'tokens.completion_offsets = { "Inceptron" = -1 } to take it off'
    )
