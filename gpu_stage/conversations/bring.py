"""Import: conversations that were answered elsewhere become completions of a run.

In: JSON Lines in any of the formats, a run file that says which target wrote them. Out:
`completions/dataset=<name>/`, whole or not at all, and a reject for every line that cannot be
used. From there on they are like bought ones: `gpu-stage tokens` gives them ids and says how far
these are known, `gpu-stage merge` takes what it is told to. Invariant: a prompt has one row, under
the id that the fleet would give it. Memory: one part, and 100 bytes a prompt for the ids seen.

What a line does not say is not made up, with one exception: where neither it nor its ids say how
an answer ended, it is taken to be whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa

import tokens
from fleet.errors import ConfigError, InputError
from fleet.records import prompt_id
from fleet.run_config import NAME, RunConfig
from fleet.schemas import COMPLETIONS
from gpu_stage.conversations.answered import Answered, Object, Unusable
from gpu_stage.conversations.completion import completion
from gpu_stage.conversations.formats import FORMATS
from gpu_stage.conversations.lines import Rejects, read_lines
from gpu_stage.conversations.spell import spelt, with_end
from gpu_stage.files import whole_folder, write_parquet
from gpu_stage.runs import open_run

ROWS_A_PART = 10_000
BYTES_A_PART = 32 << 20
REPEATING = ["tools", "finish_reason", "model", "worker"]


@dataclass(frozen=True)
class Import:
    """What to read, and where to."""

    files: Sequence[Path]
    #: A run's directory or its run file.
    run: Path
    dataset: str
    #: `last`: the last answer of a conversation; `all`: each of them.
    turns: Literal["last", "all"] = "last"


@dataclass
class Imported:
    """What came of it: lines = conversations + rejected."""

    lines: int = 0
    conversations: int = 0
    completions: int = 0
    #: By the first words of the reason; the whole of it is in the rejects.
    rejected: Counter[str] = field(default_factory=Counter)
    #: Answers of which nothing says how they ended.
    assumed_whole: int = 0


def import_conversations(asked: Import) -> Imported:
    """Read files into a run.

    Raises:
        ConfigError: the run has no run file, or belongs to the fleet; the dataset is there.
        InputError: a file cannot be read, or no line of them can be used.
    """
    config = _config(asked)
    with whole_folder(config.directory / "completions" / f"dataset={asked.dataset}") as folder:
        importer = _Importer(asked, config, folder)
        for path in asked.files:
            importer.read(path)
        return importer.finish()


def _config(asked: Import) -> RunConfig:
    run = open_run(asked.run)
    if run.config is None:
        raise ConfigError(
            f"{asked.run}: has no run.toml; write one that names the model that answered and its "
            "`target` folder (`producer init` makes one to start from)"
        )
    if (run.directory / "manifest.json").exists() or (run.directory / "prompts").exists():
        raise ConfigError(
            f"{run.directory}: its completions are bought by the fleet; import into a run of its "
            "own, `gpu-stage merge` joins them"
        )
    if not NAME.fullmatch(asked.dataset):
        raise ConfigError(f"--dataset {asked.dataset!r}: letters, digits, '.', '_', '-'")
    return run.config


class _Importer:
    """Lines on their way into part files."""

    def __init__(self, asked: Import, config: RunConfig, folder: Path) -> None:
        self._asked, self._config, self._folder = asked, config, folder
        self._done = Imported()
        self._seen: set[bytes] = set()
        self._rows: list[Object] = []
        self._bytes = 0
        self._parts = 0
        name = f"conversations-{asked.dataset}.jsonl"
        self._rejects = Rejects(config.directory / "rejects" / name)
        self._renderer: tokens.Renderer | None = None

    def read(self, path: Path) -> None:
        """Take each line of a file."""
        written = datetime.fromtimestamp(int(path.stat().st_mtime), UTC)
        for line in read_lines(path):
            self._done.lines += 1
            try:
                chain = self._chain(line.row())
                for answered in chain:
                    self._add(answered, f"{path.name}:{line.number}", written)
                self._done.conversations += 1
            except Unusable as error:
                self._done.rejected[str(error).partition(":")[0]] += 1
                self._rejects.write(line, str(error))

    def finish(self) -> Imported:
        self._flush()
        if not self._done.completions:
            raise InputError(
                f"none of {self._done.lines:,} lines can be used; the reasons are in "
                f"{self._rejects.path}"
            )
        return self._done

    def _chain(self, row: Object) -> list[Answered]:
        """The new answers of a line, each with its prompt's id."""
        found = next((form for form in FORMATS.values() if form.recognises(row)), None)
        if found is None:
            raise Unusable(f"none of the formats {', '.join(FORMATS)}: keys {', '.join(row)}"[:200])
        chain, parent, before = [], None, 0
        for answered in found.read(row):
            whole = self._with_what_ids_say(answered)
            parent = self._prompt_id(whole, before, parent if self._asked.turns == "all" else None)
            before = len(whole.messages) + 1
            chain.append(replace(whole, prompt_id=parent))
        if self._asked.turns == "last":
            chain = [replace(chain[-1], turn=0)]
        ids = [bytes.fromhex(answered.prompt_id) for answered in chain]
        if not self._seen.isdisjoint(ids):
            raise Unusable("a prompt that an earlier line has answered")
        self._seen.update(ids)
        return chain

    def _with_what_ids_say(self, answered: Answered) -> Answered:
        if answered.ids is None or (answered.messages and answered.finish_reason):
            return answered
        target = self._target()
        return with_end(target, answered if answered.messages else spelt(target, answered))

    def _prompt_id(self, answered: Answered, before: int, parent: str | None) -> str:
        """As the fleet has it: of a later turn, what comes after the parent's answer."""
        messages = [dict(m) for m in answered.messages[before if parent else 0 :]]
        tools = [dict(tool) for tool in answered.tools] if answered.tools else None
        run, sampling = self._config.run, self._config.sampling
        return prompt_id(run.model, sampling.identity(), messages, tools, parent)

    def _target(self) -> tokens.Renderer:
        if self._renderer is None:
            if self._config.target is None:
                raise ConfigError(
                    f"{self._config.path}: run.target is missing, and lines that hold ids need "
                    "its tokenizer to be read"
                )
            self._renderer = tokens.load(self._config.target)
        return self._renderer

    def _add(self, answered: Answered, source: str, written: datetime) -> None:
        self._done.completions += 1
        self._done.assumed_whole += answered.finish_reason is None
        row = completion(answered, self._config.run.model, source, written)
        self._rows.append(row)
        self._bytes += len(row["messages"]) + len(row["response"])
        if len(self._rows) >= ROWS_A_PART or self._bytes >= BYTES_A_PART:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            table = pa.Table.from_pylist(self._rows, schema=COMPLETIONS)
            write_parquet(self._folder / f"part-{self._parts:05}.parquet", table, REPEATING)
            self._rows, self._bytes, self._parts = [], 0, self._parts + 1
