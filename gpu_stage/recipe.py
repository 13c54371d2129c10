"""What decides which sample a completion becomes, and a digest of it.

In: a run's configuration, its manifest, the target's folder. Out: a `Recipe`. Invariant: two
recipes with one digest make the same samples of the same completions. So a samples file that
bears another digest is made again. It knows nothing of files of samples.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokens
from fleet.errors import ConfigError
from fleet.run_config import RunConfig
from gpu_stage.marks import Marks
from gpu_stage.prior import read_prior, read_trusted
from tokens import Renderer, Rules, TokensError
from tokens.edit_prior import Prior
from tokens.recovery import Recovery

#: Files of a model folder that a renderer is made of.
TOKENIZER_FILES = (
    "chat_template.jinja",
    "config.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer_config.json",
)


@dataclass(frozen=True)
class Recipe:
    """How the completions of a run become samples. Goes to other processes as it is."""

    target: Path
    #: Digest of the target's tokenizer files.
    tokenizer: str
    #: Whether the run asked its target to think.
    thinking: bool
    #: For a provider that `by_provider` does not have.
    rules: Rules
    by_provider: Mapping[str, Rules]
    #: Where it is known how the target departs from its canonical ids.
    prior: Prior | None
    #: Display names of providers whose samples are looked at again by it.
    trusted: frozenset[str]
    digest: str

    @property
    def marks(self) -> Marks:
        """What its samples files say of it."""
        return Marks(self.digest, self.tokenizer)

    def rules_of(self, provider: str | None) -> Rules:
        return self.by_provider.get(provider or "", self.rules)

    def renderer(self) -> Renderer:
        """The target's renderer; a process loads it once."""
        return _renderer(self.target, self.tokenizer)

    def recovery(self, provider: str | None) -> Recovery | None:
        """Finds ids of a provider's samples whose count is off; a process makes it once."""
        if self.prior is None or provider not in self.trusted:
            return None
        return _recovery(self.target, self.tokenizer, self.prior)


def recipe_of(config: RunConfig) -> Recipe:
    """The recipe of a run as it stands.

    Raises:
        ConfigError: the run file names no target, or a folder without a tokenizer.
    """
    if config.target is None:
        raise ConfigError(
            f"{config.path}: run.target is missing: name the folder with the target's tokenizer "
            'files and config.json, such as target = "models/Kimi-K2.5"'
        )
    tokenizer = _digest_of_files(
        path for name in TOKENIZER_FILES if (path := config.target / name).is_file()
    )
    try:
        family = _renderer(config.target, tokenizer).family
    except TokensError as error:
        raise ConfigError(f"{config.path}: run.target = {config.run.target!r}: {error}") from error
    rules, by_provider = _rules(config)
    thinking, prior = config.sampling.thinking, read_prior(config.directory)
    trusted = read_trusted(config.directory) if prior else frozenset()
    shapes = {
        "code": _code(),
        "tokenizer": tokenizer,
        "family": family,
        "thinking": thinking,
        "rules": _plain(rules),
        "prior": prior and prior.to_json(),
        "trusted": sorted(trusted),
        "by_provider": {name: _plain(own) for name, own in by_provider.items()},
    }
    digest = hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()
    return Recipe(config.target, tokenizer, thinking, rules, by_provider, prior, trusted, digest)


def allowed_providers(directory: Path) -> frozenset[str]:
    """Display names that the run has allowed at any of its starts, or later; none when it had none.

    All of them: who may not be asked any more, because of a price or an outage, has answered
    rightly before.

    Raises:
        ConfigError: the manifest is damaged.
    """
    path = directory / "manifest.json"
    if not path.exists():
        return frozenset()
    try:
        sessions = json.loads(path.read_bytes())["sessions"]
        return frozenset(
            endpoint["provider_name"]
            for session in sessions
            for endpoint in (*session["endpoints"], *session.get("newcomers", ()))
            if endpoint["kept"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error!r}); move it away") from None


def _rules(config: RunConfig) -> tuple[Rules, dict[str, Rules]]:
    """The rules of every provider, and of those that the run file names."""
    table = config.tokens
    common: dict[str, Any] = {
        "near_tokens": table.near_tokens,
        "near_share": table.near_share,
        "truncated": table.truncated,
        "providers": allowed_providers(config.directory),
    }
    named = table.prompt_offsets.keys() | table.completion_offsets.keys()
    return Rules(**common), {
        name: Rules(
            **common,
            prompt_offset=table.prompt_offsets.get(name, 0),
            completion_offset=table.completion_offsets.get(name, 0),
        )
        for name in named
    }


def _plain(rules: Rules) -> dict[str, Any]:
    return asdict(rules) | {"providers": sorted(rules.providers)}


@lru_cache(maxsize=2)
def _renderer(target: Path, tokenizer: str) -> Renderer:
    """`tokenizer` is there for the cache: a folder whose files change is read again."""
    return tokens.load(target)


@lru_cache(maxsize=2)
def _recovery(target: Path, tokenizer: str, prior: Prior) -> Recovery:
    return Recovery(_renderer(target, tokenizer), prior)


@lru_cache(maxsize=1)
def _code() -> str:
    """The code that text becomes ids by."""
    return _digest_of_files(sorted(Path(tokens.__file__).parent.rglob("*.py")))


def _digest_of_files(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
