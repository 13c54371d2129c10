"""The `gpu-stage` command: one function per subcommand, a few lines over the module it names."""

import json
import logging
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fleet.errors import FleetError
from gpu_stage.console import Exit, err, out
from gpu_stage.merge import merge as make_set
from gpu_stage.merge import settings

cli = typer.Typer(
    help="From completions to a draft model: token ids, a training set, hidden states, training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit status: 0 all well, 2 refused.",
)

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Directories of runs, or their run files.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


@cli.callback()
def _commands() -> None:
    """Keeps the subcommand's name in the command line while there is only one."""


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
    except OSError as error:
        _refuse(str(error))
