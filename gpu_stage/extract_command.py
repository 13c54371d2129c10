"""What `gpu-stage extract` and `gpu-stage inspect` do: options in, work done, words out.

Importing it takes torch, so the command line does so when one of the two is called.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet.errors import ConfigError
from gpu_stage.console import Exit, err, out
from gpu_stage.hidden import order as orders
from gpu_stage.hidden.cut import Work
from gpu_stage.hidden.estimate import Plan, make_plan, measure
from gpu_stage.hidden.exchange import export_hidden, import_hidden
from gpu_stage.hidden.extract import Extracted, extract_here
from gpu_stage.hidden.extract_queue import extract_by_queue
from gpu_stage.hidden.index import Storage
from gpu_stage.hidden.inspect import inspect, summary
from gpu_stage.hidden.make import Outcome
from gpu_stage.hidden.order import EngineName, Order
from gpu_stage.hidden.source import open_source
from gpu_stage.hidden.target import layers_of, look_at, pick_device, text_config

__all__ = ["export_hidden", "import_hidden"]

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "": 1}


@dataclass(frozen=True)
class Wishes:
    """Options of `gpu-stage extract`, as they were given."""

    source: Path
    out: Path | None
    target: Path | None
    engine: EngineName
    storage: Storage
    layers: str
    shard_size: str
    pack_tokens: int
    device: str
    spool: str


def work_for(wishes: Wishes) -> Work:
    """The work that the options mean; nothing is written yet.

    Raises:
        ConfigError: an option is wrong, or the target or the source is not there.
    """
    source = open_source(wishes.source)
    target = wishes.target or source.target
    if target is None:
        raise ConfigError(
            f"{wishes.source}: does not say where the target's weights are; name their folder with "
            "--target"
        )
    order = Order(
        source=str(wishes.source.resolve()),
        target_folder=str(target.resolve()),
        target=look_at(target),
        layers=layers_of(target, _numbers(wishes.layers)),
        hidden_size=int(text_config(target)["hidden_size"]),
        storage=wishes.storage,
        shard_bytes=size_bytes(wishes.shard_size),
        engine=wishes.engine,
        pack_tokens=wishes.pack_tokens,
        device=_device(wishes),
        spool_bytes=size_bytes(wishes.spool),
    )
    return Work((wishes.out or source.directory / "hidden").resolve(), order, source)


def extract(work: Work, *, queue_url: str | None, as_json: bool) -> int:
    """Make what is missing, here or by workers; the exit status."""
    orders.keep(work.folder, work.order)
    err.print(_needs(work), highlight=False, soft_wrap=True)
    made = extract_by_queue(work, queue_url, err) if queue_url else extract_here(work, err)
    if as_json:
        print(json.dumps(_told(made)))
    else:
        _show(made, work.folder)
    return Exit.SOME_FAILED if made.failed else Exit.OK


def show_plan(work: Work, *, as_json: bool) -> None:
    """Measure this machine and say what the work will take."""
    plan = make_plan(work, measure(work))
    if as_json:
        print(json.dumps(asdict(plan) | {"seconds": plan.seconds}))
        return
    for line in _plan_lines(plan, work.order):
        out.print(line, highlight=False)


def show_shards(path: Path, *, check: bool, as_json: bool) -> None:
    """What a shard, or a folder of shards, holds."""
    told = summary(path, check=check) if path.is_dir() else inspect(path, check=check)
    if as_json:
        print(json.dumps(told))
        return
    for key, value in told.items():
        if key == "samples" and isinstance(value, list):
            value = f"{len(value):,}; the first: {value[0]}"
        out.print(f"{key:>14}  {_text(value)}", highlight=False, markup=False)


def size_bytes(text: str) -> int:
    """Bytes of `200GB`, `1.5 TB`, `4096`; 0 is off.

    Raises:
        ConfigError: it is not a size.
    """
    number = text.strip().upper().rstrip("KMGTB").strip()
    unit = text.strip().upper().removeprefix(number).strip()
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(f"{text!r}: not a size; write it as 200GB, 1.5TB or 500MB") from None


def _numbers(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.split(",")) if text else None
    except ValueError:
        raise ConfigError(f"--layers {text}: three numbers, such as 2,30,58") from None


def _device(wishes: Wishes) -> str:
    if wishes.engine == "vllm" and not wishes.device.startswith("http"):
        raise ConfigError("--engine vllm: name the server with --device http://HOST:PORT")
    return pick_device(wishes.device)


def _needs(work: Work) -> str:
    missing = [piece for piece in work.pieces if not work.made(piece)]
    bytes_ = sum(piece.shape(work.order).bytes for piece in missing)
    tokens = sum(piece.tokens for piece in missing)
    spool = work.order.spool_bytes
    bound = f", never more than {_size(spool)} at once (--spool)" if spool else ""
    return (
        f"{len(missing):,} of {len(work.pieces):,} shards are to be made: {tokens:,} tokens, "
        f"{_size(bytes_)} in {work.folder}{bound}"
    )


def _plan_lines(plan: Plan, order: Order) -> list[str]:
    streamed = order.engine == "streamed"
    reads = f"read {_size(plan.read_bytes)}, once a shard" if streamed else "read once"
    short = " — too little; see --spool" if plan.write_bytes > plan.free_bytes else ""
    return [
        f"{plan.shards:,} shards, {plan.tokens:,} tokens",
        f"disk    {_size(plan.write_bytes)} of states, {_size(plan.free_bytes)} free{short}",
        f"weights {_size(plan.weight_bytes)}, {reads}; {_size(plan.resident_bytes)} at once",
        f"states  {_size(plan.state_bytes)} of host memory for the largest chunk",
        f"time    {_hours(plan.seconds)} by one process: computing {_hours(plan.compute_s)}, "
        f"reading {_hours(plan.read_s)} (the slower of the two counts), "
        f"writing {_hours(plan.write_s)}",
    ]


def _show(made: Extracted, folder: Path) -> None:
    for outcome in Outcome:
        if made.outcomes[outcome]:
            out.print(f"{made.outcomes[outcome]:>6,} shards {outcome}", highlight=False)
    if made.tokens:
        speed = made.tokens / max(made.seconds, 1e-9)
        out.print(f"{made.tokens:,} tokens, {speed:,.0f} a second", highlight=False)
    for name, why in made.failed.items():
        err.print(f"{name}: {why}", style="red", highlight=False, markup=False, soft_wrap=True)
    out.print(f"In {folder}; `gpu-stage inspect` shows them", highlight=False)


def _told(made: Extracted) -> dict[str, Any]:
    return {
        "shards": {str(outcome): made.outcomes[outcome] for outcome in Outcome},
        "tokens": made.tokens,
        "seconds": made.seconds,
        "failed": made.failed,
    }


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _size(bytes_: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if bytes_ < 1000:
            return f"{bytes_:,.3g} {unit}"
        bytes_ /= 1000
    return f"{bytes_:,.3g} TB"


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 3600:.1f} h" if seconds > 7200 else f"{seconds / 60:.0f} min"
