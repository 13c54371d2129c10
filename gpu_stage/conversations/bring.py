"""Import: conversations that were answered elsewhere become completions of a run.

In: JSON Lines in any of the formats, a run file that says which target wrote them. Out:
`completions/dataset=<name>/`, whole or not at all, and a reject for every line that cannot be
used. From there on they are like bought ones: `gpu-stage tokens` gives them ids and says how far
these are known, `gpu-stage merge` takes what it is told to. Invariant: a prompt has one row, under
the id that the fleet would give it. Memory: one part, and 100 bytes a prompt for the ids seen.

What a line does not say is not made up, with one exception: formats that do not say how an answer
ended are taken to hold whole answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

import tokens
from fleet.errors import ConfigError, InputError
from fleet.records import canonical_json, prompt_id
from fleet.run_config import NAME, RunConfig
from fleet.schemas import COMPLETIONS, PROMPT_REJECT_KEYS
from gpu_stage.conversations.answered import Answered, Object, Unusable
from gpu_stage.conversations.formats import FORMATS
from gpu_stage.conversations.spell import spelt
from gpu_stage.files import whole_folder, write_parquet
from gpu_stage.runs import open_run

ROWS_A_PART = 10_000
BYTES_A_PART = 32 << 20
EXCERPT_CHARS = 2_000
WORKER = "import"
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
        self._rejects = config.directory / "rejects" / f"conversations-{asked.dataset}.jsonl"
        self._rejects.parent.mkdir(parents=True, exist_ok=True)
        self._rejects.write_text("")
        self._renderer: tokens.Renderer | None = None

    def read(self, path: Path) -> None:
        """Take each line of a file."""
        written = datetime.fromtimestamp(int(path.stat().st_mtime), UTC)
        for number, line in _lines(path):
            self._done.lines += 1
            try:
                chain = self._chain(_row(line))
                for answered in chain:
                    self._add(answered, f"{path.name}:{number}", written)
                self._done.conversations += 1
            except Unusable as error:
                self._reject(path, number, line, str(error))

    def finish(self) -> Imported:
        self._flush()
        if not self._done.completions:
            raise InputError(
                f"none of {self._done.lines:,} lines can be used; the reasons are in "
                f"{self._rejects}"
            )
        return self._done

    def _chain(self, row: Object) -> list[Answered]:
        """The new answers of a line, each with its prompt's id."""
        found = next((form for form in FORMATS.values() if form.recognises(row)), None)
        if found is None:
            raise Unusable(f"none of the formats {', '.join(FORMATS)}: keys {', '.join(row)}"[:200])
        chain, parent, before = [], None, 0
        for answered in found.read(row):
            whole = answered if answered.messages else spelt(self._target(), answered)
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
                    f"{self._config.path}: run.target is missing, and lines that hold only ids "
                    "need its tokenizer to be read"
                )
            self._renderer = tokens.load(self._config.target)
        return self._renderer

    def _add(self, answered: Answered, source: str, written: datetime) -> None:
        self._done.completions += 1
        self._done.assumed_whole += answered.finish_reason is None
        row = _completion(answered, self._config.run.model, source, written)
        self._rows.append(row)
        self._bytes += len(row["messages"]) + len(row["response"])
        if len(self._rows) >= ROWS_A_PART or self._bytes >= BYTES_A_PART:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            table = pa.Table.from_pylist(self._rows, schema=COMPLETIONS)
            write_parquet(self._folder / f"part-{self._parts:05}.parquet", table, REPEATING)
            self._rows, self._bytes, self._parts = [], 0, self._parts + 1

    def _reject(self, path: Path, number: int, line: bytes, reason: str) -> None:
        self._done.rejected[reason.partition(":")[0]] += 1
        text = line.decode("utf-8", "replace").strip()[:EXCERPT_CHARS]
        row = dict(zip(PROMPT_REJECT_KEYS, (str(path), number, reason, text), strict=True))
        with self._rejects.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _row(line: bytes) -> Object:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Unusable("half a surrogate pair") from error
    except (ValueError, RecursionError) as error:
        raise Unusable(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise Unusable("not an object")
    return row


def _completion(answered: Answered, model: str, source: str, written: datetime) -> Object:
    """A row of `fleet.schemas.COMPLETIONS`."""
    ended = answered.finish_reason or ("tool_calls" if answered.tool_calls else "stop")
    usage = answered.usage or {}
    return {
        "prompt_id": answered.prompt_id,
        "turn": answered.turn,
        "messages": canonical_json(list(answered.messages)),
        "tools": canonical_json(list(answered.tools)) if answered.tools else None,
        "content": answered.content,
        "reasoning": answered.reasoning,
        "tool_calls": canonical_json(list(answered.tool_calls)) if answered.tool_calls else None,
        "finish_reason": ended,
        "model": model,
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "attempts": 0,
        "latency_s": 0.0,
        "requested_at": written,
        "completed_at": written,
        "worker": WORKER,
        "response": json.dumps(_body(answered, ended, source), ensure_ascii=False),
    }


def _body(answered: Answered, ended: str, source: str) -> Object:
    """The answer as a response, which is what `tokens.verify` reads."""
    message: Object = {"role": "assistant", "content": answered.content}
    if answered.reasoning:
        message["reasoning"] = answered.reasoning
    if answered.tool_calls:
        message["tool_calls"] = list(answered.tool_calls)
    choice: Object = {"index": 0, "message": message, "finish_reason": ended}
    body: dict[str, Any] = {"imported_from": source, "choices": [choice]}
    if answered.ids:
        choice["token_ids"] = list(answered.ids.completion)
        body["prompt_token_ids"] = list(answered.ids.prompt)
    if answered.usage:
        body["usage"] = dict(answered.usage)
    return body
