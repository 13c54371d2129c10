"""The `producer` command: one function per subcommand, a few lines over the module it names."""

import csv
import json
import logging
import sys
import tempfile
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Annotated, NoReturn

import redis
import typer

from fleet import run_config
from fleet.errors import ConfigError, FleetError
from fleet.log import setup
from fleet.run_config import DEFAULT_BASE_URL, Providers, RunConfig
from fleet.settings import Settings
from producer.account import Account
from producer.answer_sizes import read_measured
from producer.console import Exit, err, out
from producer.cost_plan import make_plan
from producer.cost_report import plan_record, show_cost_plan
from producer.costing import cost_of
from producer.demo import run_demo
from producer.execute import Order, feed_run, reach_ledger, run_here
from producer.forecast import forecast
from producer.interrupts import Interrupts
from producer.metrics import serve
from producer.opening import Opened, only_looking, prepare, write_manifest
from producer.outcome import conclude
from producer.pauses import BY_USER
from producer.pilot import show_pilot
from producer.plan import show_plan
from producer.policy import judge, needs_of, needs_of_policy
from producer.progress import endpoint_table, money, table
from producer.providers import show_providers
from producer.reconcile import compare, show_reconciliation
from producer.watch import watch as watch_run

cli = typer.Typer(
    help="Buy the text an EAGLE-3 draft is trained on: feed a run, watch it, steer it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit status: 0 all well, 1 some prompts failed, 2 refused, 130 ended before the run.",
)

RunFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file.")]
Limit = Annotated[int, typer.Option(min=0, help="Feed only the first N prompts of each dataset.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and count; buy nothing.")]
Strict = Annotated[bool, typer.Option("--strict", help="Fail on the first unusable row.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before spending.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
Concurrency = Annotated[
    int, typer.Option(min=0, help="Most requests in flight; 0: as the run file says.")
]

Column = Annotated[
    str | None, typer.Option(help="Column that holds the prompt, for datasets that name none.")
]
Template = Annotated[
    str | None,
    typer.Option(help="Text of the user message with {column}s, for datasets that have none."),
]


@cli.command()
def init(path: RunFile = Path("run.toml")) -> None:
    """Write a commented run file to start from."""
    if path.exists():
        raise ConfigError(f"{path} is there already; name another file or move it away")
    path.parent.mkdir(parents=True, exist_ok=True)
    template = resources.files("producer") / "templates" / "run.toml"
    name = path.resolve().parent.name if path.name == "run.toml" else path.stem
    name = name if run_config.NAME.fullmatch(name) else "my-run"
    path.write_text(template.read_text("utf-8").format(path=path, name=name), "utf-8")
    out.print(f"Wrote {path}. Edit it, then: producer run {path}", highlight=False)


@cli.command()
def providers(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="OpenRouter id: author/model.")],
    run_file: Annotated[
        Path | None, typer.Option("--run", metavar="RUN.toml", help="Judge by this run file.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="The target's folder: its config.json says its weights.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a model's endpoints: prices, limits, health, and which the policy keeps and why."""
    settings = _settings()
    if run_file:
        config = run_config.load(run_file)
        needs, base_url = needs_of(config, tools=False), config.run.base_url
    else:
        needs, base_url = needs_of_policy(Providers(), model, target), DEFAULT_BASE_URL
    account = Account(settings.base_url or base_url, settings.api_key)
    verdicts = judge(account.endpoints(model), needs)
    show_providers(model, verdicts, needs, as_json)
    if not any(verdict.kept for verdict in verdicts):
        raise typer.Exit(Exit.REFUSED)


@cli.command()
def plan(
    path: RunFile,
    from_run: Annotated[
        Path | None,
        typer.Option(metavar="RUN.toml", help="Sizes and prices as that run's answers had them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run will cost, and which budgets fit its cap and the balance. Buys nothing.

    Exit status 1 when the money is not enough.
    """
    config, settings = run_config.load(path), _settings()
    account = Account(settings.base_url or config.run.base_url, settings.api_key)
    measured = read_measured(run_config.load(from_run)) if from_run else None
    if measured and not measured.overall:
        raise ConfigError(f"{from_run}: no answers on disk; `producer pilot` buys some")
    balance = account.balance().remaining_usd if settings.api_key else None
    with only_looking(config) as directory:
        opened = prepare(config, account, directory, limit=0, strict=False)
        found = make_plan(config, opened, directory, balance, measured)
    if as_json:
        print(json.dumps(plan_record(found), indent=2))
    else:
        show_cost_plan(found)
    raise typer.Exit(Exit.OK if found.fits else Exit.SOME_FAILED)


@cli.command()
def enqueue(
    path: RunFile,
    limit: Limit = 0,
    dry_run: DryRun = False,
    strict: Strict = False,
    concurrency: Concurrency = 0,
    column: Column = None,
    template: Template = None,
    yes: Yes = False,
) -> None:
    """Feed a run to a fleet that runs elsewhere, until it ends. Needs REDIS_URL.

    May be stopped, started again, or run twice at once: nothing is bought twice.
    """
    config = run_config.load(
        path, concurrency=concurrency or None, column=column, template=template
    )
    settings = _settings(needs_key=not dry_run)
    if not settings.redis_url and not dry_run:
        raise ConfigError("REDIS_URL is not set; `producer run` does all on this machine")
    account, opened = _open(config, settings, limit, strict, dry_run)
    if dry_run or not _agreed(config, opened, yes):
        return
    with reach_ledger(config, settings) as (url, ledger):
        whole = feed_run(Order(config, account, opened), url, ledger)
        raise typer.Exit(conclude(config, ledger, opened.rows) if whole else Exit.INTERRUPTED)


@cli.command()
def run(
    path: RunFile,
    limit: Limit = 0,
    dry_run: DryRun = False,
    strict: Strict = False,
    concurrency: Concurrency = 0,
    column: Column = None,
    template: Template = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    yes: Yes = False,
) -> None:
    """Do a run on this machine: Redis, workers, collector and feeder in one command."""
    config = run_config.load(
        path, concurrency=concurrency or None, column=column, template=template
    )
    settings = _settings(needs_key=not dry_run)
    account, opened = _open(config, settings, limit, strict, dry_run)
    if dry_run or not _agreed(config, opened, yes):
        return
    raise typer.Exit(run_here(Order(config, account, opened), settings, workers))


@cli.command()
def pilot(
    path: RunFile,
    prompts: Annotated[
        int, typer.Option("-n", "--prompts", min=1, help="Prompts of each dataset.")
    ] = 50,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    yes: Yes = False,
) -> None:
    """Buy a few answers from every endpoint alike, measure them, and say what the rest will cost.

    The answers are the run's own: nothing is bought twice. Exit status 1 when prompts failed.
    """
    config, settings = run_config.load(path), _settings(needs_key=True)
    account, opened = _open(config, settings, 0, False, False)
    if not _agreed(config, opened, yes, prompts):
        return
    order = Order(config, account, opened, pilot=prompts)
    if settings.redis_url:
        with reach_ledger(config, settings) as (url, ledger):
            whole = feed_run(order, url, ledger)
    else:
        whole = run_here(order, settings, workers) is not Exit.INTERRUPTED
    with reach_ledger(config, settings, must_exist=True) as (_, ledger):
        snapshot = ledger.snapshot()
        show_pilot(config, snapshot)
    balance = account.balance().remaining_usd
    show_cost_plan(make_plan(config, opened, config.directory, balance, read_measured(config)))
    ended = Exit.SOME_FAILED if snapshot.failed else Exit.OK
    raise typer.Exit(ended if whole else Exit.INTERRUPTED)


@cli.command()
def status(path: RunFile, as_json: AsJson = False) -> None:
    """Show how a run stands."""
    with reach_ledger(run_config.load(path), _settings(), must_exist=True) as (_, ledger):
        snapshot = ledger.snapshot()
    if as_json:
        print(json.dumps({**asdict(snapshot), "forecast": asdict(forecast(snapshot))}, indent=2))
    else:
        out.print(table(snapshot))
        out.print(endpoint_table(snapshot))


@cli.command()
def watch(path: RunFile) -> None:
    """Show a run live, until it has ended. Ctrl-C stops looking, not the run.

    Where there is no terminal: a line every five seconds.
    """
    config, settings, ended = run_config.load(path), _settings(), None
    while ended is None:
        with reach_ledger(config, settings, must_exist=True) as (_, ledger):
            ended = watch_run(ledger, patient=bool(settings.redis_url))
    raise typer.Exit(Exit.OK if ended else Exit.INTERRUPTED)


@cli.command()
def metrics(
    path: RunFile,
    address: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, help="0: a free one.")] = 9464,
) -> None:
    """Serve a run's counters to Prometheus at /metrics, until it is stopped."""
    config = run_config.load(path)
    with (
        Interrupts() as interrupts,
        reach_ledger(config, _settings(), must_exist=True) as (_, ledger),
        serve(config.run.name, ledger, address, port) as url,
    ):
        err.print(f"Metrics of {config.run.name}: {url}", highlight=False, soft_wrap=True)
        while not interrupts.count:
            interrupts.wait(3600)


@cli.command()
def reconcile(
    path: RunFile,
    sample: Annotated[int, typer.Option(min=0, help="Answers to look up one by one.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Hold what the ledger spent against what OpenRouter billed; differences by prompt."""
    config, settings = run_config.load(path), _settings(needs_key=True)
    account = Account(settings.base_url or config.run.base_url, settings.api_key)
    with reach_ledger(config, settings, must_exist=True) as (_, ledger):
        found = compare(ledger, account, config.directory, sample)
    if as_json:
        print(json.dumps({**asdict(found), "problems": found.problems()}, indent=2))
    else:
        show_reconciliation(found)
    raise typer.Exit(Exit.SOME_FAILED if found.problems() else Exit.OK)


@cli.command()
def pause(path: RunFile) -> None:
    """Start no more requests until `producer resume`; what is in flight is finished."""
    with reach_ledger(run_config.load(path), _settings(), must_exist=True) as (_, ledger):
        before = ledger.paused()
        ledger.pause(BY_USER, "producer pause", anew=True)
    was = f" It had paused itself: {before['reason']}" if before else ""
    out.print(f"Paused, until `producer resume`.{was}", highlight=False)


@cli.command()
def resume(path: RunFile) -> None:
    """Go on after a pause."""
    with reach_ledger(run_config.load(path), _settings(), must_exist=True) as (_, ledger):
        out.print("Going on." if ledger.resume() else "It was not paused.")


@cli.command()
def cancel(path: RunFile, dataset: str) -> None:
    """Stop a dataset for good. What is in flight is kept when it comes."""
    config = run_config.load(path)
    with reach_ledger(config, _settings(), must_exist=True) as (_, ledger):
        # One that was taken out of the run file is still on the ledger.
        if dataset not in {d.name for d in ledger.snapshot().datasets}:
            config.dataset(dataset)
        ledger.cancel(dataset)
    out.print(f"{dataset} is cancelled.", highlight=False)


@cli.command()
def failures(
    path: RunFile,
    retry: Annotated[bool, typer.Option("--retry", help="Send them all again.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write them as JSON lines.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the prompts in the dead letters, with their last error."""
    with reach_ledger(run_config.load(path), _settings(), must_exist=True) as (_, ledger):
        if retry:
            again = ledger.retry(ledger.failures())
            out.print(f"{again:,} prompts will be sent again, by `producer run` or `enqueue`.")
            return
        rows = [{"prompt_id": prompt_id, **failure} for prompt_id, failure in ledger.failures()]
    if export:
        export.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        out.print(f"Wrote {len(rows):,} failures to {export}.", highlight=False)
    elif as_json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        err.print("No prompt is in the dead letters.")
    else:
        writer = csv.writer(sys.stdout, delimiter="\t", lineterminator="\n")
        for row in rows:
            writer.writerow(
                [row[k] for k in ("prompt_id", "dataset", "kind", "attempts", "reason")]
            )


@cli.command()
def demo(
    directory: Annotated[Path, typer.Option(help="Where to keep the run.")] = Path("runs"),
) -> None:
    """Show the whole line on this machine with a small real model: no key, no GPU, no Docker."""
    raise typer.Exit(run_demo(directory))


def _settings(*, needs_key: bool = False) -> Settings:
    settings = Settings.from_environment()
    setup(settings.log_level, settings.secrets())
    if needs_key and not settings.api_key:
        raise ConfigError(
            "set OPENROUTER_API_KEY or OPENROUTER_API_KEY_FILE (`producer demo` needs none)"
        )
    return settings


def _open(
    config: RunConfig, settings: Settings, limit: int, strict: bool, dry_run: bool
) -> tuple[Account, Opened]:
    """Read what the run needs; a dry run leaves nothing behind, so that its file may change."""
    account = Account(settings.base_url or config.run.base_url, settings.api_key)
    if dry_run and not (config.directory / "prompts").exists():
        with tempfile.TemporaryDirectory(prefix="eagle-fleet-") as scratch:
            opened = prepare(config, account, Path(scratch), limit=limit, strict=strict)
    else:
        opened = prepare(config, account, config.directory, limit=limit, strict=strict)
    if not dry_run:
        write_manifest(config, opened)
    show_plan(config, opened, account.base_url)
    return account, opened


def _agreed(config: RunConfig, opened: Opened, yes: bool, prompts: int = 0) -> bool:
    """Whether to spend; `prompts` of each dataset, 0: all that is left."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError("this spends money: pass --yes where nobody can be asked")
    plan = make_plan(config, opened, config.directory, None, read_measured(config))
    each = [cost_of(work, plan.price).requests for work in plan.works]
    few = sum(min(requests, prompts) if prompts else requests for requests in each)
    usd = plan.total_usd * few / sum(each) if sum(each) else 0.0
    cap = f", never more than {money(config.run.cap_usd)}" if config.run.cap_usd else ", no cap"
    question = f"Buy about {few:,.0f} answers for about {money(usd)}{cap}?"
    return typer.confirm(question, err=True)


def _refuse(text: str) -> NoReturn:
    err.print(f"producer: {text}", style="red", highlight=False, markup=False, soft_wrap=True)
    raise SystemExit(Exit.REFUSED) from None


def main() -> None:
    """Run the command; what its user can act on is a message, not a traceback."""
    try:
        cli()
    except FleetError as error:
        logging.getLogger(__name__).debug("refused", exc_info=True)
        _refuse(str(error))
    except redis.RedisError as error:
        _refuse(f"Redis does not answer: {error}")
    except OSError as error:
        _refuse(str(error))
