"""What `gpu-stage audit` does: options in, work done, words out.

Importing it takes torch, so the command line does so when it is called.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fleet.errors import ConfigError
from gpu_stage.audit.measure import rule_of
from gpu_stage.audit.record import make_record, show_record, write_record
from gpu_stage.audit.run import Subject, Target, measure, prepare
from gpu_stage.console import Exit, err, out
from gpu_stage.engines.final_norm import Head, read_head
from gpu_stage.engines.layers import default_layers
from gpu_stage.engines.states import Engine
from gpu_stage.hidden.target import load_engine, look_at, pick_device, text_config
from gpu_stage.progress import Bar
from gpu_stage.runs import open_run


@dataclass(frozen=True)
class Wishes:
    """Options of `gpu-stage audit`, as they were given."""

    run: Path
    target: Path | None
    tokens: int
    tolerance: float
    engine: str
    device: str
    hidden: Path | None = None


def audit(wishes: Wishes, *, as_json: bool) -> int:
    """Audit a run's providers and write `audit.json`; the exit status.

    Raises:
        ConfigError: an option is wrong, the target is not there, or the run cannot be audited.
        InputError: it has no samples whose ids are known.
    """
    run = open_run(wishes.run)
    if run.config is None:
        raise ConfigError(f"{wishes.run}: has no run.toml, so nothing says how it sampled")
    target = wishes.target or run.config.target
    if target is None:
        raise ConfigError(
            f"{run.config.path}: run.target is missing; name the folder of the target's weights "
            "there, or with --target"
        )
    hidden = wishes.hidden or run.directory / "hidden"
    subject = Subject(run, run.config, rule_of(run.config), look_at(target).fingerprint, hidden)

    @cache
    def engine() -> Engine:
        layers = default_layers(int(text_config(target)["num_hidden_layers"]))
        return load_engine(target, layers, wishes.engine, pick_device(wishes.device))

    @cache
    def head() -> Head:
        return read_head(target, "cpu" if wishes.engine == "vllm" else pick_device(wishes.device))

    plan = prepare(subject, wishes.tokens)
    with Bar(err, "audit", plan.choice.samples) as bar:
        measured = measure(subject, plan, Target(engine, head), bar.add)
    record = make_record(subject, measured, wishes.tolerance)
    path = write_record(run.directory, record)
    if as_json:
        print(json.dumps(record))
    else:
        show_record(out, record)
        out.print(f"Wrote {path}", highlight=False)
    return Exit.SOME_FAILED if "failed" in record["verdicts"].values() else Exit.OK
