"""What comes from the environment: parsed once, here and nowhere else.

| variable | is |
|---|---|
| `OPENROUTER_API_KEY`, or `OPENROUTER_API_KEY_FILE` | the key, or a file that holds it |
| `OPENROUTER_BASE_URL` | API root, instead of the run file's |
| `REDIS_URL` | the ledger and broker; absent: one embedded in the run's directory |
| `REDIS_PASSWORD_FILE` | a file with the password for `REDIS_URL` |
| `EAGLE_FLEET_LOG_LEVEL` | `info` if absent |
| `EAGLE_FLEET_WATCHDOG_S` | seconds until a worker that takes no work ends itself; 0: off |
| `EAGLE_FLEET_HEARTBEAT_FILE` | a file that a worker touches while it lives, for a health check |
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from fleet.errors import ConfigError

#: Shorter keys are placeholders of local servers: striking them out would garble what is said.
TELLING_CHARS = 12


class Secret:
    """A text that is not shown: `repr`, `str` and formatting give `***`.

    It cannot be pickled, so that no task message or other process can hold it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def telling(self) -> bool:
        """Long enough to be a secret wherever it is found: `none` is a word of other texts too."""
        return len(self._value) >= TELLING_CHARS

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __deepcopy__(self, memo: object) -> "Secret":
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret cannot be pickled")


@dataclass(frozen=True)
class Settings:
    """The environment of this process."""

    api_key: Secret = field(default_factory=lambda: Secret(""))
    base_url: str | None = None
    redis_url: Secret = field(default_factory=lambda: Secret(""))
    log_level: str = "info"
    heartbeat_file: Path | None = None
    #: Seconds after which a worker that takes no work ends itself; 0: off.
    watchdog_s: float = 120.0

    def secrets(self) -> list[Secret]:
        """All that no log may show."""
        password = urlsplit(self.redis_url.reveal()).password or ""
        return [self.api_key, self.redis_url, Secret(password), Secret(unquote(password))]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Parse the environment.

        Raises:
            ConfigError: a variable names a file that cannot be read, or a value is impossible.
        """
        key = _text_or_file(environment, "OPENROUTER_API_KEY")
        if any(c.isspace() or ord(c) < 33 or ord(c) > 126 for c in key):
            raise ConfigError("OPENROUTER_API_KEY: has a character that no key has (a space?)")
        level = (environment.get("EAGLE_FLEET_LOG_LEVEL") or "info").lower()
        if level not in ("debug", "info", "warning", "error"):
            raise ConfigError(f"EAGLE_FLEET_LOG_LEVEL={level!r}: debug, info, warning or error")
        return cls(
            api_key=Secret(key),
            base_url=_base_url(environment),
            redis_url=Secret(_redis_url(environment)),
            log_level=level,
            heartbeat_file=_path(environment.get("EAGLE_FLEET_HEARTBEAT_FILE")),
            watchdog_s=_seconds(environment, "EAGLE_FLEET_WATCHDOG_S", cls.watchdog_s),
        )


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{name}={text!r}: seconds, 0 or more")
    return seconds


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def is_http(url: str) -> bool:
    """Whether `url` is one that requests can be sent to."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        return False


def _base_url(environment: Mapping[str, str]) -> str | None:
    url = environment.get("OPENROUTER_BASE_URL", "").strip()
    if url and not is_http(url):
        raise ConfigError(f"OPENROUTER_BASE_URL={url!r}: must be an http:// or https:// URL")
    return url or None


def _text_or_file(environment: Mapping[str, str], name: str) -> str:
    path = environment.get(f"{name}_FILE")
    if not path:
        return environment.get(name, "").strip()
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}_FILE={path}: {error}") from None
    if not text:
        raise ConfigError(f"{name}_FILE={path}: the file is empty")
    return text


def _redis_url(environment: Mapping[str, str]) -> str:
    url = environment.get("REDIS_URL", "").strip()
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"REDIS_URL: {str(error).partition(' as ')[0]}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError("REDIS_URL: must begin with redis://, rediss:// or unix://")
    password = _text_or_file(environment, "REDIS_PASSWORD")
    if not password:
        return url
    credentials, _, host = parts.netloc.rpartition("@")
    user = credentials.partition(":")[0]  # quoted already
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))
