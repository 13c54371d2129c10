"""Opening a run: prompts frozen, endpoints known, the ledger told, the manifest written.

In: a run file. Out: an `Opened` run, ready to be fed. Safe to repeat: frozen prompts stay as
they are, and the ledger takes over raised caps and budgets.
"""

import contextlib
import hashlib
import os
import platform
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from fleet.errors import ConfigError
from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from fleet.transitions import nano_usd
from producer.account import Account
from producer.endpoints import Endpoint
from producer.freeze import FreezeSummary, freeze
from producer.frozen import has_tools
from producer.manifest import add_session, note_newcomers
from producer.policy import Needs, Verdict, judge, kept, needs_of
from producer.routing import is_ranked, provider_field, provider_names, routes

#: One decrease per burst: the 429s of requests sent before the last decrease say nothing new.
BURST_MS = 2000
#: What is left of the limit when every answer of a burst was a 429 or 503.
DECREASE = 0.5
#: Between two requests to a fleet's endpoints while all of them are down.
PROBE_MS = 5000


@dataclass(frozen=True)
class Opened:
    """A run that can be fed."""

    summaries: list[FreezeSummary]
    #: Rows to feed by dataset.
    rows: dict[str, int]
    #: Every endpoint that the model has, and what keeps it from being asked.
    verdicts: list[Verdict]
    #: When they were read, UTC.
    listed_at: datetime
    needs: Needs
    #: Made once, kept in the directory: tells runs of the same name apart.
    run_id: str

    @property
    def endpoints(self) -> list[Endpoint]:
        """Those that may be asked."""
        return [verdict.endpoint for verdict in self.verdicts if verdict.kept]


def prepare(
    config: RunConfig, account: Account, directory: Path, *, limit: int, strict: bool
) -> Opened:
    """Freeze the prompts into `directory` and read the endpoints. Buys nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    listing, listed_at = account.endpoints(config.run.model), datetime.now(UTC)
    kept(judge(listing, needs_of(config, tools=False)))  # before what may take long
    seen: set[bytes] = set()
    summaries = [
        freeze(
            dataset,
            config.path.parent,
            directory,
            config.run.model,
            config.sampling,
            strict=strict,
            seen=seen,
        )
        for dataset in config.datasets
    ]
    rows = {s.dataset: min(s.prompts, limit) if limit else s.prompts for s in summaries}
    tools = any(has_tools(directory / "prompts" / f"{name}.parquet") for name in rows)
    needs = needs_of(config, tools=tools)
    verdicts = judge(listing, needs)
    kept(verdicts)
    return Opened(summaries, rows, verdicts, listed_at, needs, _run_id(directory))


@contextlib.contextmanager
def only_looking(config: RunConfig) -> Iterator[Path]:
    """A directory to `prepare` in that leaves nothing behind, with what is frozen already."""
    frozen = config.directory / "prompts"
    with tempfile.TemporaryDirectory(prefix="eagle-fleet-") as scratch:
        prompts = Path(scratch) / "prompts"
        prompts.mkdir()
        for path in frozen.glob("*.parquet"):
            (prompts / path.name).symlink_to(path.resolve())
        yield Path(scratch)


def open_ledger(config: RunConfig, ledger: Ledger, opened: Opened, *, evenly: bool = False) -> None:
    """Tell the ledger, and through it the workers, what the run is.

    Args:
        evenly: every endpoint gets the same part of the requests, whatever the run file says.

    Raises:
        ConfigError: the ledger has another run of this name, or a dataset that the file no
            longer names.
    """
    run, sampling = config.run, config.sampling
    _check_same_run(config, ledger, opened)
    ledger.open(
        _job(config, opened.run_id, opened.endpoints),
        {
            "cap": nano_usd(run.cap_usd),
            "concurrency": run.concurrency,
            "burst_ms": BURST_MS,
            "decrease": DECREASE,
            "probe_ms": PROBE_MS,
            "max_tokens": sampling.max_tokens,
            "ranked": int(is_ranked(config) and not evenly),
            "share_for_others": config.providers.share_for_others,
        },
    )
    ledger.forget_verified(verdict.endpoint.tag for verdict in opened.verdicts)
    _tell_routes(config, ledger, evenly, opened.verdicts)
    for dataset in config.datasets:
        ledger.open_dataset(
            dataset.name,
            prompts=opened.rows[dataset.name],
            budget_tokens=dataset.budget_tokens,
            prior_tokens=max(1, sampling.max_tokens // 2),
        )


def tell_endpoints(
    config: RunConfig, ledger: Ledger, run_id: str, evenly: bool, verdicts: Sequence[Verdict]
) -> None:
    """Who may answer has changed, or what it costs.

    The manifest learns first who may: whoever judges a completion of theirs finds them there.

    Raises:
        NobodyLeft: nobody may; the ledger is told so first.
    """
    note_newcomers(config.directory, verdicts)
    _tell_routes(config, ledger, evenly, verdicts)
    ledger.set_config(_job(config, run_id, kept(verdicts)))


def _tell_routes(
    config: RunConfig, ledger: Ledger, evenly: bool, verdicts: Sequence[Verdict]
) -> None:
    off = {v.endpoint.tag: "; ".join(v.reasons) for v in verdicts if not v.kept and v.endpoint.tag}
    left = [v.endpoint for v in verdicts if v.kept]
    ledger.set_routes(routes(config, left, evenly=evenly) if left else [], off)


def _job(config: RunConfig, run_id: str, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """What the workers are told: a `workers.job.Job`, and whose it is."""
    return {
        "run_id": run_id,
        "model": config.run.model,
        "base_url": config.run.base_url,
        "request": request_fields(config, endpoints),
        "providers": provider_names(endpoints),
        "deadline_s": config.run.deadline_s,
        "max_attempts": config.run.max_attempts,
        "verify": _verify(config),
    }


def _verify(config: RunConfig) -> dict[str, Any] | None:
    """What the collector is told, a `workers.verifier.Job`; None without a tokenizer."""
    if config.target is None:
        return None
    return {
        "target": str(config.target.resolve()),
        "thinking": config.sampling.thinking,
        "tokens": msgspec.to_builtins(config.tokens),
    }


def _check_same_run(config: RunConfig, ledger: Ledger, opened: Opened) -> None:
    known = ledger.config()
    if known is not None and known.get("run_id") != opened.run_id:
        raise ConfigError(
            f"{config.path}: Redis has another run named {config.run.name!r}, made in another"
            " directory; give this one another run.name"
        )
    names = {dataset.name for dataset in config.datasets}
    for dataset in ledger.snapshot().datasets if known else []:
        if dataset.name not in names and not dataset.cancelled:
            raise ConfigError(
                f"{config.path}: dataset {dataset.name} is under way and no longer in the file; put"
                f" it back, or `producer cancel {config.path} {dataset.name}` first"
            )


def request_fields(config: RunConfig, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Every field of a request body but the messages and the tools."""
    sampling = config.sampling
    fields: dict[str, Any] = {
        "model": config.run.model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "provider": provider_field(config, endpoints),
    }
    if sampling.reasoning is not None:
        fields["reasoning"] = sampling.reasoning
    if sampling.logprobs:
        fields |= {"logprobs": True, "top_logprobs": 0}
    return fields | sampling.extra


def _run_id(directory: Path) -> str:
    """The run's id; of two feeders that start at once, one makes it."""
    path = directory / ".run-id"
    fresh = directory / f".run-id.{os.getpid()}"
    fresh.write_text(uuid.uuid4().hex, "utf-8")
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(fresh)
    fresh.unlink()
    return path.read_text("utf-8")


def write_manifest(config: RunConfig, opened: Opened) -> Path:
    """Append what is true now to `manifest.json`: versions, endpoints, prices, hashes."""
    session = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("eagle-fleet", "celery", "redis", "pyarrow")},
        },
        "run_file_sha256": hashlib.sha256(config.path.read_bytes()).hexdigest(),
        "endpoints_read_at": opened.listed_at.isoformat(timespec="seconds"),
        "endpoints": [verdict.record() for verdict in opened.verdicts],
        "newcomers": [],
        "prompts": msgspec.to_builtins(opened.summaries),
    }
    return add_session(config.directory, session)
