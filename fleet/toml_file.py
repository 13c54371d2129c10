"""TOML files read into strict structs, with errors that name the file, the key and the value.

In: a path and a frozen `msgspec.Struct` that forbids unknown keys. Out: the struct, or a
`ConfigError`. It does not know what the keys mean.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fleet.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)


def read_toml(path: Path, shape: type[T], if_missing: str) -> T:
    """Read a file.

    Args:
        if_missing: what to do when there is no such file.

    Raises:
        ConfigError: the file is missing, is not TOML, or a key is wrong.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; {if_missing}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from error
    try:
        return msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_located(raw, str(error))}") from error


def _located(raw: Any, message: str) -> str:
    """msgspec's message with the key as TOML spells it, and the value that stands there."""
    what, _, place = message.partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    for step in re.findall(r"\.?([^.\[\]]+)", path):
        try:
            raw = raw[int(step)] if isinstance(raw, list) else raw[step]
        except (KeyError, IndexError, TypeError, ValueError):
            break
    else:
        if path and not isinstance(raw, dict):
            return f"{path} = {raw!r}: {what}"
    return f"[{path}]: {what}" if path else what
