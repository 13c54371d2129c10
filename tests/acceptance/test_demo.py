"""The first thing a newcomer does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest


@pytest.mark.timeout(600)
def test_demo_completes_with_a_real_model_and_leaves_no_process(
    tmp_path: Path, command_lines
) -> None:
    """`producer demo` needs no key: it buys real text from an emulator of its own, shows the rows
    that it wrote, finds out who served another temperature, makes hidden states, and leaves no
    process behind."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENROUTER", "REDIS"))}
    result = subprocess.run(
        [sys.executable, "-m", "producer", "demo"],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "1 rows set aside in rejects/ (1 empty prompt)" in result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    rows = ds.dataset(run / "completions", format="parquet", partitioning="hive").to_table()
    assert f"{rows.num_rows} done + 0 failed" in result.stderr
    assert {"instructions", "chat"} <= set(rows.column("dataset").to_pylist())
    assert set(rows.column("provider").to_pylist()) == {"Alpha", "Beta"}, "never the fp4 one"
    assert sum(rows.column("completion_tokens").to_pylist()) > 500
    assert "The first 6 rows" in result.stdout
    verdicts = json.loads((run / "audit.json").read_text())["verdicts"]
    assert (verdicts["Alpha"] != "failed", verdicts["Beta"]) == (True, "failed")
    shards = list((run / "hidden").rglob("*.safetensors"))
    assert len(shards) == len(list((run / "completions").rglob("*.parquet")))
    assert not [line for line in command_lines() if str(tmp_path).encode() in line]
