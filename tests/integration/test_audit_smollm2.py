"""The audit on completions of a real model, some of which other weights or settings wrote."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import samples_kit

from fleet.cache import smollm2_folder
from gpu_stage.audit_command import Wishes, audit

DATA = Path(__file__).parents[3] / "shared" / "data" / "smollm2"
RUN = """
[run]
name = "r"
model = "author/model"
[sampling]
temperature = 1.0
[[datasets]]
name = "B1"
path = "prompts.jsonl"
"""

pytestmark = [
    pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/smollm2 is absent"),
    pytest.mark.skipif(
        not (smollm2_folder() / "config.json").exists(),
        reason="SmolLM2 is not converted: `make demo` does it",
    ),
]


def verdicts(folder: Path, **counts: int) -> dict[str, Any]:
    """The record of an audit of so many completions of each kind, as providers of that name."""
    rows = []
    for name, count in counts.items():
        table = pq.read_table(DATA / f"{name}.parquet").slice(0, count)
        rows += [
            samples_kit.Row(
                f"{name} {n}",
                provider=name,
                fidelity="exact",
                prompt_ids=row["prompt_token_ids"],
                completion_ids=row["token_ids"],
                finish_reason=row["finish_reason"],
            )
            for n, row in enumerate(table.to_pylist())
        ]
    run = samples_kit.write_run(folder / "run", {"B1": rows})
    (run / "run.toml").write_text(RUN)
    audit(Wishes(run, smollm2_folder(), 0, 0.05, "resident", "cpu"), as_json=False)
    found: dict[str, Any] = json.loads((run / "audit.json").read_text())
    return found


def test_another_temperature_and_three_bits_are_seen_at_once(tmp_path: Path) -> None:
    """A handful of answers is enough; the faithful provider is not accused."""
    found = verdicts(tmp_path, faithful=8, cooler=8, rtn3=3)
    assert found["verdicts"] == {"cooler": "failed", "faithful": "undecided", "rtn3": "failed"}
    assert found["providers"]["cooler"]["z"] < -5
    assert found["providers"]["rtn3"]["z"] > 5
    assert abs(found["providers"]["faithful"]["z"]) < 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_bits_fail_with_some_ten_thousand_tokens_and_the_target_passes(
    tmp_path: Path,
) -> None:
    """Both with the number of tokens that the docs name."""
    found = verdicts(tmp_path, faithful=400, rtn4=200)
    assert found["verdicts"] == {"faithful": "passed", "rtn4": "failed"}
    assert 20_000 < found["providers"]["rtn4"]["tokens"] < 50_000
