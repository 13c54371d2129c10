"""The `gpu-stage` command: one function per subcommand, a few lines over the module it names."""

import importlib
import json
import logging
from functools import partial
from pathlib import Path
from types import ModuleType
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


@cli.command()
def audit(
    run: RunPath,
    target: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The target's weights: run.target.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=0, help="Most completion tokens of a provider; 0: all.")
    ] = 50_000,
    tolerance: Annotated[
        float, typer.Option(min=0, help="The drift that does not matter, in nats a token.")
    ] = 0.05,
    engine: Annotated[
        Literal["resident", "streamed", "vllm"], typer.Option(help="As in extract.")
    ] = "resident",
    device: Annotated[str, typer.Option(help="As in extract.")] = "auto",
    hidden: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Shards of the run's samples, if not RUN/hidden."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold what providers sent against the target: who serves another model? Exit status 1: one."""
    command = _with_torch("audit_command")
    wishes = command.Wishes(run, target, tokens, tolerance, engine, device, hidden)
    raise typer.Exit(command.audit(wishes, as_json=as_json))


@cli.command()
def extract(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|SET", help="A run, or the folder of a training set.")
    ],
    directory: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where the shards go: SET/hidden.")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The target's weights; a run's is its run.target."),
    ] = None,
    engine: Annotated[
        Literal["resident", "streamed", "vllm"],
        typer.Option(help="The whole target in memory; a layer at a time; a vLLM server."),
    ] = "resident",
    storage: Annotated[
        Literal["bf16", "fp8"], typer.Option(help="Two bytes a value, or one with scales.")
    ] = "bf16",
    layers: Annotated[
        str, typer.Option(help="The three aux layers, such as 2,30,58; default: the engines' own.")
    ] = "",
    shard_size: Annotated[str, typer.Option(help="Most bytes of a shard.")] = "4GB",
    pack_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that go through the target at once.")
    ] = 8192,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, or the URL of a vLLM server.")
    ] = "auto",
    spool: Annotated[
        str, typer.Option(help="Most bytes of the folder: waits for training to consume; 0: off.")
    ] = "0",
    plan: Annotated[
        bool, typer.Option("--plan", help="Measure, say what it will take, and stop.")
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="By the workers of the queue `gpu`, at REDIS_URL.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make hidden states of all samples."""
    command = _with_torch("extract_command")
    wishes = command.Wishes(
        source, directory, target, engine, storage, layers, shard_size, pack_tokens, device, spool
    )
    work = command.work_for(wishes)
    if plan:
        command.show_plan(work, as_json=as_json)
    else:
        url = _redis_url() if queue else None
        raise typer.Exit(command.extract(work, queue_url=url, as_json=as_json))


@cli.command()
def train(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|SET", help="A run, or the folder of a training set.")
    ],
    directory: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where checkpoints go: SET/checkpoints."),
    ] = None,
    hidden: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its hidden states: SET/hidden.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The target's weights, if they moved.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", metavar="FILE", help="How: a TOML.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")] = "auto",
) -> None:
    """Train the draft on hidden states; started again, it goes on."""
    command = _with_torch("train_command")
    wishes = command.Wishes(source, directory, hidden, target, command.settings(config), device)
    raise typer.Exit(command.run_training(wishes))


@cli.command()
def evaluate(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|SET", help="What the draft was trained on.")
    ],
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The training: SET/checkpoints.")
    ] = None,
    hidden: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its hidden states: SET/hidden.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Most held-out prompts to decode.")] = 40,
    tokens: Annotated[int, typer.Option(min=2, help="Most tokens of a text.")] = 128,
    guesses: Annotated[int, typer.Option(min=1, help="Tokens guessed a round.")] = 5,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the draft on what is held out: accuracy, and real speculative decoding."""
    command = _with_torch("evaluate_command")
    wishes = command.Wishes(
        source, checkpoints, hidden, prompts, tokens, guesses, temperature, device
    )
    raise typer.Exit(command.evaluate(wishes, as_json=as_json))


@cli.command("export")
def export_draft(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A training, or one of its checkpoints.")
    ],
    style: Annotated[
        Literal["sglang", "vllm", "speculators"], typer.Option("--format", help="For whom.")
    ],
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.")],
) -> None:
    """Write the draft as an engine loads it, with its contract and a model card."""
    _with_torch("export.write").export_draft(folder, style, directory)
    out.print(f"Wrote {directory}", highlight=False)


@cli.command()
def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="SHARD|DIR", help="A shard, or a folder of them.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Read all of it, and hold it against its checksum.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what shards of hidden states hold."""
    _with_torch("extract_command").show_shards(path, check=check, as_json=as_json)


@cli.command("export-hidden")
def export_hidden(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of shards.")],
    style: Annotated[
        Literal["speculators", "specforge"], typer.Option("--format", help="Whose files to write.")
    ],
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.")],
    target: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The target's weights (specforge).")
    ] = None,
) -> None:
    """Write hidden states as another trainer reads them."""
    count = _with_torch("extract_command").export_hidden(folder, style, directory, target)
    out.print(f"Wrote {count:,} samples to {directory}", highlight=False)


@cli.command("import-hidden")
def import_hidden(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Another trainer's folder.")],
    style: Annotated[
        Literal["speculators", "specforge"], typer.Option("--format", help="Whose files they are.")
    ],
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where shards go.")],
    target: Annotated[Path, typer.Option(metavar="DIR", help="The target's weights.")],
    shard_size: Annotated[str, typer.Option(help="Most bytes of a shard.")] = "1GB",
) -> None:
    """Make shards of hidden states that another trainer's tools extracted."""
    command = _with_torch("extract_command")
    most = command.size_bytes(shard_size)
    count, shards = command.import_hidden(folder, style, directory, target, most)
    out.print(f"{count:,} samples in {shards:,} shards in {directory}", highlight=False)


def _with_torch(module: str) -> ModuleType:
    """What needs torch is imported by the commands that need it."""
    try:
        return importlib.import_module(f"gpu_stage.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed: pip install 'eagle-fleet[gpu]'"
        ) from error


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
