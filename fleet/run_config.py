"""The run file: what a run is asked to do, as frozen structs.

In: a TOML file. Out: a `RunConfig`, checked whole, or a `ConfigError` that names the file,
the key and the value. Invariant: nothing else in the project parses the file, and a
`RunConfig` never changes after `load`. It knows nothing of Redis or of the network.
"""

import math
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from fleet.errors import ConfigError
from fleet.settings import is_http
from fleet.toml_file import read_toml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MODEL = re.compile(r"[^/\s]+/[^/\s]+")
#: Fields of the request body that another key of the run file sets, or that would change what
#: an answer is: `sampling.extra` may not hold them.
OWN_FIELDS = {
    "model": "run.model",
    "messages": "the dataset",
    "tools": "the dataset",
    "provider": "[providers]",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "max_tokens": "sampling.max_tokens",
    "max_completion_tokens": "sampling.max_tokens",
    "logprobs": "sampling.logprobs",
    "reasoning": "sampling.reasoning",
    "stream": "nothing: answers are read whole",
    "n": "nothing: one answer a prompt",
}
LONGEST_DEADLINE_S = 86_400.0
DEFAULT_BASE_URL = "https://openrouter.ai/api/v1"


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[sampling]`: how the target is asked to answer."""

    #: Softmax temperature; 1.0 is the target's own distribution, which is what a draft learns.
    temperature: float = 1.0
    #: Nucleus mass; 1.0 is off.
    top_p: float = 1.0
    #: Most completion tokens of one answer, reasoning included; always sent.
    max_tokens: int = 8192
    #: Ask for log-probabilities of the sampled tokens (exact token ids where a provider has them).
    logprobs: bool = False
    #: OpenRouter's `reasoning` object, sent as it is; absent: the model's default.
    reasoning: dict[str, Any] | None = None
    #: Any other field of the request body, sent as it is.
    extra: dict[str, Any] = {}

    @property
    def thinking(self) -> bool:
        """Whether the target is to think before it answers, where it has the choice."""
        asked, template = self.reasoning or {}, self.extra.get("chat_template_kwargs")
        named = template if isinstance(template, dict) else {}
        off = (
            asked.get("enabled") is False,
            asked.get("effort") == "none",
            named.get("thinking") is False,
            named.get("enable_thinking") is False,
        )
        return not any(off)

    def identity(self) -> dict[str, Any]:
        """The part that shapes the answer, and with it the `prompt_id`.

        `max_tokens` only cuts an answer short and `logprobs` only describes it, so raising
        either buys nothing a second time.
        """
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "reasoning": self.reasoning,
            "extra": self.extra,
        }


class Providers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[providers]`: which endpoints may answer, and how requests are shared out to them."""

    #: Endpoint tags (`chutes/int4`) or provider slugs (`chutes`) allowed; empty: all.
    only: list[str] = []
    #: Endpoint tags or provider slugs never used; absent: those known to serve other weights.
    ignore: list[str] | None = None
    #: Quantisations allowed: `native` (the one that the weights were released in), `unknown`,
    #: `int4`, `fp8`, …; empty: all; absent: `native`.
    quantizations: list[str] | None = None
    #: Longest answer that an endpoint must give; 0: `sampling.max_tokens`.
    min_output_tokens: int = 0
    #: Context that an endpoint must have.
    min_context_tokens: int = 0
    #: Parameters that an endpoint must support besides those the requests send.
    require: list[str] = []
    #: Lowest status in the listing: 0 healthy, -2 degraded, -5 down.
    min_status: int = -2
    #: Lowest uptime of the last 30 minutes, in percent; 0 is off.
    min_uptime: float = 0.0
    #: Most US dollars per million tokens; 0 is off.
    max_prompt_usd_per_m: float = 0.0
    max_completion_usd_per_m: float = 0.0
    #: `cheapest`: the cheapest endpoint that takes requests; `order`: the first of `only` that
    #: does; `spread`: all, by inverse square of price; `openrouter`: OpenRouter's own balancing.
    routing: Literal["cheapest", "order", "spread", "openrouter"] = "cheapest"
    #: Under `cheapest` and `order`, the part of the requests that goes to the other endpoints.
    share_for_others: float = 0.05


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tokens]`: which completions become samples, see docs/tokens.md."""

    #: How far a count may be off: so many tokens and such a part of those found.
    near_tokens: int = 2
    near_share: float = 0.005
    #: Whether answers that were cut off at `sampling.max_tokens` are samples.
    truncated: bool = False
    #: Billed minus found, by the provider's display name, where that is a constant.
    prompt_offsets: dict[str, int] = {}
    completion_offsets: dict[str, int] = {}


class Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[datasets]]` table: a named set of prompts."""

    name: str
    #: File, glob or list of them, relative to the run file.
    path: str | list[str]
    #: Completion tokens to buy; 0 is off (every prompt is completed).
    budget_tokens: int = 0
    #: Column that holds the prompt; absent: recognised.
    column: str | None = None
    #: Text of the user message with `{column}` placeholders; absent: the recognised shape.
    template: str | None = None
    #: System message put before every prompt that has none.
    system: str | None = None
    #: `last`: answer the last user turn. `all`: write every assistant turn anew, in order.
    turns: Literal["last", "all"] = "last"

    def patterns(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else list(self.path)


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[run]`: the job as a whole."""

    #: Names the run's keys in Redis and its directory.
    name: str
    #: OpenRouter model id of the target, e.g. `moonshotai/kimi-k2.5`.
    model: str
    #: Most US dollars to spend; 0 is off.
    cap_usd: float = 0.0
    #: Most requests in flight over the whole fleet.
    concurrency: int = 64
    #: Wall-clock limit of one request, in seconds.
    deadline_s: float = 600.0
    #: Attempts before a prompt goes to the dead letters; a 429 costs none.
    max_attempts: int = 6
    #: API root; the environment variable OPENROUTER_BASE_URL wins over it.
    base_url: str = DEFAULT_BASE_URL
    #: Local folder of the target, relative to the run file: `config.json` and the tokenizer.
    target: str | None = None
    #: Directory of everything the run makes; absent: see `RunConfig.directory`.
    directory: str | None = None


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of a run file as they stand."""

    run: Run
    datasets: list[Dataset]
    sampling: Sampling = Sampling()
    providers: Providers = Providers()
    tokens: Tokens = Tokens()


class RunConfig(msgspec.Struct, frozen=True):
    """A run file, checked, with the path it was read from."""

    path: Path
    run: Run
    sampling: Sampling
    providers: Providers
    datasets: list[Dataset]
    tokens: Tokens = Tokens()

    @property
    def directory(self) -> Path:
        """Where the run lives: the folder of a `run.toml`, else `runs/<name>` beside the file."""
        base = self.path.parent
        if self.run.directory is not None:
            return base / self.run.directory
        return base if self.path.name == "run.toml" else base / "runs" / self.run.name

    @property
    def target(self) -> Path | None:
        """The target's local folder, if the run file names one."""
        return None if self.run.target is None else self.path.parent / self.run.target

    def dataset(self, name: str) -> Dataset:
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        known = ", ".join(d.name for d in self.datasets)
        raise ConfigError(f"{self.path}: no dataset is named {name!r}; the run has {known}")


def load(
    path: Path,
    *,
    concurrency: int | None = None,
    column: str | None = None,
    template: str | None = None,
) -> RunConfig:
    """Read and check a run file; of a directory, its `run.toml`.

    Args:
        concurrency: instead of the file's `run.concurrency`.
        column, template: for the datasets that have neither of their own.

    Raises:
        ConfigError: the file is missing, is not TOML, or a key is wrong.
    """
    path = path / "run.toml" if path.is_dir() else path
    file = read_toml(path, RunFile, f"`producer init {path}` writes one")
    run = file.run
    if concurrency is not None:
        run = msgspec.structs.replace(run, concurrency=concurrency)
    datasets = [
        dataset
        if dataset.column or dataset.template
        else msgspec.structs.replace(dataset, column=column, template=template)
        for dataset in file.datasets
    ]
    config = RunConfig(path.resolve(), run, file.sampling, file.providers, datasets, file.tokens)
    for problem in _problems(config):
        raise ConfigError(f"{path}: {problem}")
    return config


def _problems(config: RunConfig) -> list[str]:
    run, sampling, providers = config.run, config.sampling, config.providers
    names = [dataset.name for dataset in config.datasets]
    checks = [
        (NAME.fullmatch(run.name), f"run.name = {run.name!r}: letters, digits, '.', '_', '-'"),
        (MODEL.fullmatch(run.model), f"run.model = {run.model!r}: expected author/model"),
        (
            0 <= run.cap_usd < math.inf,
            f"run.cap_usd = {run.cap_usd}: must be 0 (off) or more",
        ),
        (run.concurrency >= 1, f"run.concurrency = {run.concurrency}: must be 1 or more"),
        (
            0 < run.deadline_s <= LONGEST_DEADLINE_S,
            f"run.deadline_s = {run.deadline_s}: must be more than 0, at most a day",
        ),
        (run.max_attempts >= 1, f"run.max_attempts = {run.max_attempts}: must be 1 or more"),
        (
            0 <= sampling.temperature <= 2,
            f"sampling.temperature = {sampling.temperature}: must be 0 to 2",
        ),
        (0 < sampling.top_p <= 1, f"sampling.top_p = {sampling.top_p}: must be in (0, 1]"),
        (sampling.max_tokens >= 1, f"sampling.max_tokens = {sampling.max_tokens}: must be ≥ 1"),
        (
            is_http(run.base_url),
            f"run.base_url = {run.base_url!r}: must be an http:// or https:// URL",
        ),
        (
            config.target is None or config.target.is_dir(),
            f"run.target = {run.target!r}: no such folder",
        ),
        (
            0 <= providers.share_for_others < 1,
            f"providers.share_for_others = {providers.share_for_others}: must be in [0, 1)",
        ),
        (
            providers.routing != "order" or providers.only,
            'providers.routing = "order" needs the tags in their order: providers.only',
        ),
        (
            0 <= providers.min_uptime <= 100,
            f"providers.min_uptime = {providers.min_uptime}: must be 0 (off) to 100",
        ),
        *(
            (value >= 0, f"providers.{name} = {value}: must be 0 (off) or more")
            for name, value in (
                ("min_output_tokens", providers.min_output_tokens),
                ("min_context_tokens", providers.min_context_tokens),
                ("max_prompt_usd_per_m", providers.max_prompt_usd_per_m),
                ("max_completion_usd_per_m", providers.max_completion_usd_per_m),
            )
        ),
        (
            config.tokens.near_tokens >= 0,
            f"tokens.near_tokens = {config.tokens.near_tokens}: must be 0 or more",
        ),
        (
            0 <= config.tokens.near_share < 1,
            f"tokens.near_share = {config.tokens.near_share}: must be in [0, 1)",
        ),
        (names, "no [[datasets]] table: name at least one"),
        (len(set(names)) == len(names), f"dataset names repeat: {', '.join(names)}"),
    ]
    checks += [
        (False, f"sampling.extra.{name} = {sampling.extra[name]!r}: is set by {OWN_FIELDS[name]}")
        for name in sorted(sampling.extra.keys() & OWN_FIELDS)
    ]
    for dataset in config.datasets:
        name = dataset.name
        checks += [
            (NAME.fullmatch(name), f"dataset name {name!r}: letters, digits, '.', '_', '-'"),
            (
                dataset.patterns() and all(dataset.patterns()),
                f"dataset {name}: path = {dataset.path!r}: is empty",
            ),
            (
                dataset.budget_tokens >= 0,
                f"dataset {name}: budget_tokens = {dataset.budget_tokens}: must be 0 (off) or more",
            ),
        ]
    return [message for ok, message in checks if not ok]
