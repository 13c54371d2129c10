"""The `gpu-stage` command: one function per subcommand, a few lines over the module it names."""

import json
import logging
from pathlib import Path
from typing import Annotated, NoReturn

import redis
import typer

from fleet import run_config
from fleet.errors import ConfigError, FleetError
from fleet.log import setup
from fleet.run_config import RunConfig
from fleet.settings import Settings
from gpu_stage.console import Exit, err, out
from gpu_stage.token_queue import tokenise_by_queue
from gpu_stage.token_report import make_report
from gpu_stage.token_run import tokenise_here
from gpu_stage.token_tables import show_made, show_report

cli = typer.Typer(
    help="From completions to a draft model: token ids, training set, hidden states, training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit status: 0 all well, 1 some parts could not be made, 2 refused, 130 interrupted.",
)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory, or its run file.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


@cli.callback()
def _set_up() -> None:
    settings = Settings.from_environment()
    setup(settings.log_level, settings.secrets())


@cli.command()
def tokens(
    run: RunPath,
    processes: Annotated[
        int, typer.Option("-j", "--processes", min=0, help="Processes; 0: one a core.")
    ] = 0,
    queue: Annotated[
        bool, typer.Option("--queue", help="By the workers of the queue `tokens`, at REDIS_URL.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Completions to token ids, verified: what is new goes to samples/, with a report."""
    config = _config(run)
    made = tokenise_by_queue(config, _redis_url()) if queue else tokenise_here(config, processes)
    report = make_report(config)
    show_made(err, made)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show_report(out, report)
    raise typer.Exit(Exit.SOME_FAILED if made.failed else Exit.OK)


def _redis_url() -> str:
    url = Settings.from_environment().redis_url.reveal()
    if not url:
        raise ConfigError("REDIS_URL is not set; without --queue all is done on this machine")
    return url


def _config(path: Path) -> RunConfig:
    file = path / "run.toml" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise ConfigError(f"{path}: has no run.toml; name the run file instead")
    return run_config.load(file)


def _refuse(text: str) -> NoReturn:
    err.print(f"gpu-stage: {text}", style="red", highlight=False, markup=False, soft_wrap=True)
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
