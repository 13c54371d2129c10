"""The `gpu-stage` command: one function per subcommand, a few lines over the module it names."""

import json
import logging
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import redis
import typer

from fleet.errors import ConfigError, FleetError
from fleet.log import setup
from fleet.run_config import RunConfig
from fleet.settings import Settings
from gpu_stage.console import Exit, err, out
from gpu_stage.conversations import export_conversations, import_conversations
from gpu_stage.conversations.bring import Import
from gpu_stage.conversations.give import Export
from gpu_stage.merge import merge as make_set
from gpu_stage.merge import settings
from gpu_stage.runs import open_run
from gpu_stage.token_queue import tokenise_by_queue
from gpu_stage.token_report import make_report
from gpu_stage.token_run import tokenise, tokenise_here
from gpu_stage.token_tables import show_made, show_report

cli = typer.Typer(
    help="From completions to a draft model: token ids, training set, hidden states, training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit status: 0 all well, 1 some parts could not be made, 2 refused, 130 interrupted.",
)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory, or its run file.")]
Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Directories of runs, or their run files.")
]
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
    if queue:
        make = partial(tokenise_by_queue, url=_redis_url())
    else:
        make = partial(tokenise_here, processes=processes)
    made = tokenise(config, make)
    report = make_report(config)
    show_made(err, made)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show_report(out, report)
    raise typer.Exit(Exit.SOME_FAILED if made.failed else Exit.OK)


@cli.command()
def merge(
    runs: Runs,
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="The set's folder.")],
    config: Annotated[
        Path | None, typer.Option("-c", "--config", metavar="FILE", help="What goes in: a TOML.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make one training set of the samples of several datasets and runs."""
    chosen = settings.load(config) if config else settings.MergeFile()
    record = make_set(runs, directory, chosen)
    if as_json:
        print(json.dumps(record, indent=2))
        return
    read, train, heldout = (record["overall"][side] for side in ("read", "train", "heldout"))
    out.print(
        f"{read['rows']:,} samples read: {train['rows']:,} to train on "
        f"({train['loss_tokens']:,} tokens of the target), {heldout['rows']:,} held out",
        highlight=False,
    )
    for reason, count in record["overall"]["dropped"].items():
        out.print(f"  {count:>9,} left out: {reason}", highlight=False)
    out.print(f"Wrote {directory}/card.md", highlight=False)


@cli.command("export-conversations")
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|DIR", help="A run, or the folder of a training set.")
    ],
    style: Annotated[
        Literal["specforge", "speculators", "openai", "sharegpt"],
        typer.Option("--format", help="Whose rows to write."),
    ],
    file: Annotated[Path, typer.Option("--out", metavar="FILE.jsonl", help="The file to write.")],
    fidelity: Annotated[
        list[str] | None,
        typer.Option(help="Only answers whose ids are known so; may be repeated."),
    ] = None,
    side: Annotated[
        Literal["train", "heldout"], typer.Option(help="Of a training set, which side.")
    ] = "train",
) -> None:
    """Write the answers of a run as another project reads them."""
    done = export_conversations(Export(source, style, file, fidelity or [], side))
    out.print(f"Wrote {done.written:,} answers to {file}", highlight=False)
    for reason, count in sorted(done.left_out.items()):
        out.print(f"  {count:>9,} left out: {reason}", highlight=False)


@cli.command("import-conversations")
def bring(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="JSON Lines.")],
    run: Annotated[
        Path, typer.Option(metavar="RUN", help="A run of their own: its directory or run file.")
    ],
    dataset: Annotated[str, typer.Option(help="The dataset's name in the run.")],
    turns: Annotated[
        Literal["last", "all"],
        typer.Option(help="Which answers the target wrote: the last of a conversation, or all."),
    ] = "last",
) -> None:
    """Make completions of conversations that the target answered elsewhere."""
    done = import_conversations(Import(files, run, dataset, turns))
    out.print(
        f"{done.lines:,} lines read: {done.conversations:,} conversations, "
        f"{done.completions:,} answers",
        highlight=False,
    )
    for reason, count in sorted(done.rejected.items()):
        out.print(f"  {count:>9,} set aside: {reason}", highlight=False)
    if done.assumed_whole:
        out.print(
            f"Of {done.assumed_whole:,} answers nothing says how they ended: taken to be whole",
            highlight=False,
        )
    out.print(f"Next: gpu-stage tokens {run}", highlight=False)


def _redis_url() -> str:
    url = Settings.from_environment().redis_url.reveal()
    if not url:
        raise ConfigError("REDIS_URL is not set; without --queue all is done on this machine")
    return url


def _config(path: Path) -> RunConfig:
    config = open_run(path).config
    if config is None:
        raise ConfigError(f"{path}: has no run.toml; name the run file instead")
    return config


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
