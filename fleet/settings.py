"""What comes from the environment: parsed once, here and nowhere else.

| variable | is |
|---|---|
| `OPENROUTER_API_KEY`, or `OPENROUTER_API_KEY_FILE` | the key, or a file that holds it |
| `OPENROUTER_BASE_URL` | API root, instead of the run file's |
| `REDIS_URL` | the ledger and broker; absent: one embedded in the run's directory |
| `REDIS_PASSWORD_FILE` | a file with the password for `REDIS_URL` |
| `EAGLE_FLEET_LOG_LEVEL` | `info` if absent |
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from fleet.errors import ConfigError


class Secret:
    """A text that is not shown: `repr`, `str` and formatting give `***`."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._value)


@dataclass(frozen=True)
class Settings:
    """The environment of this process."""

    api_key: Secret = field(default_factory=lambda: Secret(""))
    base_url: str | None = None
    redis_url: Secret = field(default_factory=lambda: Secret(""))
    log_level: str = "info"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Parse the environment.

        Raises:
            ConfigError: a variable names a file that cannot be read, or a value is impossible.
        """
        key = _text_or_file(environment, "OPENROUTER_API_KEY")
        if any(c.isspace() or ord(c) < 33 or ord(c) > 126 for c in key):
            raise ConfigError("OPENROUTER_API_KEY: has a character that no key has (a space?)")
        level = environment.get("EAGLE_FLEET_LOG_LEVEL", "info").lower()
        if level not in ("debug", "info", "warning", "error"):
            raise ConfigError(f"EAGLE_FLEET_LOG_LEVEL={level!r}: debug, info, warning or error")
        return cls(
            api_key=Secret(key),
            base_url=environment.get("OPENROUTER_BASE_URL") or None,
            redis_url=Secret(_redis_url(environment)),
            log_level=level,
        )


def _text_or_file(environment: Mapping[str, str], name: str) -> str:
    if path := environment.get(f"{name}_FILE"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}_FILE={path}: {error}") from None
    return environment.get(name, "").strip()


def _redis_url(environment: Mapping[str, str]) -> str:
    url = environment.get("REDIS_URL", "")
    if not url:
        return ""
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        raise ConfigError("REDIS_URL: must begin with redis://, rediss:// or unix://")
    password = _text_or_file(environment, "REDIS_PASSWORD")
    if not password:
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = parts.username or ""
    netloc = f"{quote(user)}:{quote(password, safe='')}@{host}"
    return urlunsplit(parts._replace(netloc=netloc))
