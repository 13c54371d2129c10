"""The demo: the whole line on one machine, with a real model behind an emulated OpenRouter."""

import os
import shutil
import subprocess
import sys
import time
from datetime import datetime
from importlib import resources
from pathlib import Path

import pyarrow.dataset as ds
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from fleet import run_config
from fleet.cache import smollm2_folder
from fleet.errors import FleetError
from fleet.log import setup
from fleet.settings import Secret, Settings
from producer.account import Account
from producer.children import Child, our_code
from producer.console import Exit, err, out
from producer.execute import Order, run_here
from producer.opening import prepare, write_manifest
from producer.plan import show_plan

#: Converting the model's weights the first time takes about half a minute.
EMULATOR_START_S = 180.0
WORKERS = 2
ROWS_SHOWN = 6


def run_demo(directory: Path) -> Exit:
    """Make a run under `directory` and complete it against an emulator of its own."""
    # The emulator is here, whatever proxy the environment names for the world outside.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    home = directory / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    template = resources.files("producer") / "templates" / "demo"
    with resources.as_file(template) as source:
        shutil.copytree(source, home)
    settings = Settings(api_key=Secret("sk-or-v1-demo"))
    setup(settings.log_level, settings.secrets())
    err.print("Starting an OpenRouter on this machine, with SmolLM2-135M behind it …")
    emulator, url = _start_emulator(home)
    try:
        # The emulator has converted the model by now: the run's target is there.
        (home / "target").symlink_to(smollm2_folder())
        config = run_config.load(home / "run.toml")
        account = Account(url, settings.api_key)
        opened = prepare(config, account, config.directory, limit=0, strict=False)
        write_manifest(config, opened)
        show_plan(config, opened, account.base_url)
        code = run_here(Order(config, account, opened), settings, WORKERS)
    finally:
        emulator.terminate()
        emulator.wait()
    _show_rows(config.directory)
    return code or _go_on(config.directory)


def _go_on(directory: Path) -> Exit:
    """Token ids, hidden states and the audit, by the commands that a user would call."""
    run = os.path.relpath(directory)
    err.print(
        "\nTo token ids; through the target, for the hidden states that a draft learns from; and "
        "held against\nthe target (Beta serves another temperature than it is asked for):"
    )
    for command in (
        ["tokens", run],
        ["extract", run],
        ["inspect", f"{run}/hidden"],
        ["audit", run],
    ):
        err.print(f"\n$ gpu-stage {' '.join(command)}", style="bold", highlight=False)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gpu_stage", *command],
            env=os.environ | {"PYTHONPATH": our_code()},
            check=False,
        )
        # The audit's 1 is what it is there for: a provider failed.
        if done.returncode not in (0, 1 if command[0] == "audit" else 0):
            return Exit.SOME_FAILED
    return Exit.OK


def _start_emulator(home: Path) -> tuple[Child, str]:
    ready = (home / "emulator.url").resolve()
    config = (home / "emulator.toml").resolve()
    command = ["emulator", "--config", str(config), "--ready-file", str(ready)]
    emulator = Child("emulator", command, {}, home / "logs" / "emulator.log")
    deadline = time.monotonic() + EMULATOR_START_S
    while not ready.exists():
        emulator.check()
        if time.monotonic() > deadline:
            emulator.kill()
            raise FleetError(f"the emulator did not start; see {emulator.log_file}")
        time.sleep(0.05)
    return emulator, ready.read_text("utf-8").strip()


def _show_rows(directory: Path) -> None:
    completions = directory / "completions"
    files = sorted(completions.rglob("*.parquet"))
    err.print("\nCompletions, as Parquet:")
    for file in files:
        err.print(f"  {os.path.relpath(file)}", highlight=False, soft_wrap=True)
    columns = ["dataset", "provider", "completion_tokens", "cost_usd", "content"]
    rows = ds.dataset(completions, format="parquet", partitioning="hive").head(ROWS_SHOWN, columns)
    shown = Table(
        title=f"The first {rows.num_rows} rows", title_justify="left", box=SIMPLE, expand=True
    )
    for column in columns[:-1]:
        shown.add_column(column.removeprefix("completion_"), no_wrap=True)
    shown.add_column("content", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows.to_pylist():
        content = escape(" ".join((row["content"] or "").split()))
        cost, tokens = f"{row['cost_usd']:.8f}", str(row["completion_tokens"])
        shown.add_row(row["dataset"], row["provider"], tokens, cost, content)
    out.print(shown)
