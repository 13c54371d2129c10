"""The environment parsed: secrets stay secret, a bad value is named."""

import copy
import dataclasses
import pickle
import traceback
from pathlib import Path

import pytest

from fleet.errors import ConfigError
from fleet.settings import Secret, Settings

KEY = "sk-or-v1-0123456789abcdef"


def test_a_secret_is_shown_nowhere() -> None:
    """Neither `repr`, `str`, formatting, f-strings, nor the settings around it show it."""
    secret = Secret(KEY)
    settings = Settings(api_key=secret, redis_url=Secret(f"redis://:{KEY}@h"))
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>5}",
        f"{secret:>9}",
    ]
    shown += [
        format(secret, ""),
        repr([secret]),
        repr(settings),
        str(dataclasses.asdict(settings)),
    ]
    assert KEY not in "".join(shown)
    assert f"{secret:>9}" == "      ***"
    assert secret.reveal() == KEY


def test_a_secret_is_not_in_a_traceback_with_its_locals() -> None:
    """Tools that print a frame's variables print `repr`."""
    secret = Secret(KEY)

    def fails(held: Secret) -> None:
        raise ValueError(held)

    with pytest.raises(ValueError, match=r"\*\*\*") as caught:
        fails(secret)
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert KEY not in "".join(shown.format()).replace(f"KEY = {KEY!r}", "")


def test_a_secret_cannot_be_pickled_and_has_no_fields() -> None:
    """No task message, cache or other process can come to hold it; copies are itself."""
    secret = Secret(KEY)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(Settings(api_key=secret))
    assert not hasattr(secret, "__dict__")
    assert copy.deepcopy(secret) is secret


def test_a_secret_is_true_when_there_is_one() -> None:
    """An absent key is false."""
    assert Secret("x")
    assert not Secret("")


def test_the_environment_is_parsed_whole() -> None:
    """Each variable to its field."""
    settings = Settings.from_environment(
        {
            "OPENROUTER_API_KEY": f" {KEY}\n",
            "OPENROUTER_BASE_URL": "http://localhost:8000/api/v1",
            "REDIS_URL": "redis://localhost:6379/0",
            "EAGLE_FLEET_LOG_LEVEL": "DEBUG",
        }
    )
    assert settings.api_key.reveal() == KEY
    assert settings.base_url == "http://localhost:8000/api/v1"
    assert settings.redis_url.reveal() == "redis://localhost:6379/0"
    assert settings.log_level == "debug"


def test_empty_variables_are_absent() -> None:
    """Compose passes an unset variable as an empty one."""
    names = ("API_KEY", "API_KEY_FILE", "BASE_URL")
    environment = {f"OPENROUTER_{name}": "" for name in names}
    environment |= {"REDIS_URL": "", "REDIS_PASSWORD_FILE": "", "EAGLE_FLEET_LOG_LEVEL": ""}
    settings = Settings.from_environment(environment)
    assert not settings.api_key
    assert settings.base_url is None
    assert settings.log_level == Settings.from_environment({}).log_level == "info"


def test_a_key_may_be_in_a_file(tmp_path: Path) -> None:
    """`OPENROUTER_API_KEY_FILE` wins over the variable; the line's end is not the key's."""
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    environment = {"OPENROUTER_API_KEY_FILE": str(path), "OPENROUTER_API_KEY": "other"}
    assert Settings.from_environment(environment).api_key.reveal() == KEY


@pytest.mark.parametrize(
    ("url", "with_password"),
    [
        ("redis://host:6379/1", "redis://:p%40ss%2F%3A@host:6379/1"),
        ("rediss://user:old@host", "rediss://user:p%40ss%2F%3A@host"),
        ("redis://us%40er@[::1]:6379", "redis://us%40er:p%40ss%2F%3A@[::1]:6379"),
        ("unix:///run/redis.sock?db=2", "unix://:p%40ss%2F%3A@/run/redis.sock?db=2"),
    ],
)
def test_a_redis_password_may_be_in_a_file(tmp_path: Path, url: str, with_password: str) -> None:
    """It is quoted into the URL, whatever the URL's form; nothing else changes."""
    path = tmp_path / "password"
    path.write_text("p@ss/:\n")
    settings = Settings.from_environment({"REDIS_URL": url, "REDIS_PASSWORD_FILE": str(path)})
    assert settings.redis_url.reveal() == with_password


def test_the_secrets_are_all_that_no_log_may_show() -> None:
    """The key, the whole Redis URL, and its password in both spellings."""
    settings = Settings.from_environment(
        {"OPENROUTER_API_KEY": KEY, "REDIS_URL": "redis://:p%40ss@host"}
    )
    secrets = {secret.reveal() for secret in settings.secrets() if secret}
    assert secrets == {KEY, "redis://:p%40ss@host", "p%40ss", "p@ss"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OPENROUTER_API_KEY": "two words-secret"}, "OPENROUTER_API_KEY"),
        ({"OPENROUTER_API_KEY": "kéy-secret"}, "OPENROUTER_API_KEY"),
        ({"OPENROUTER_API_KEY_FILE": "/no/such/file"}, "OPENROUTER_API_KEY_FILE=/no/such/file"),
        ({"OPENROUTER_API_KEY_FILE": "/"}, "OPENROUTER_API_KEY_FILE=/"),
        ({"OPENROUTER_API_KEY_FILE": "/dev/null"}, "the file is empty"),
        ({"OPENROUTER_BASE_URL": "openrouter.ai/api"}, "OPENROUTER_BASE_URL='openrouter.ai/api'"),
        ({"OPENROUTER_BASE_URL": "ftp://x"}, "OPENROUTER_BASE_URL='ftp://x'"),
        ({"OPENROUTER_BASE_URL": "http://"}, "OPENROUTER_BASE_URL='http://'"),
        ({"OPENROUTER_BASE_URL": "http://h:port"}, "OPENROUTER_BASE_URL='http://h:port'"),
        ({"REDIS_URL": "localhost:6379"}, "REDIS_URL: must begin with redis://"),
        ({"REDIS_URL": "http://:secret@h"}, "REDIS_URL: must begin with redis://"),
        ({"REDIS_URL": "redis://:secret@[::1"}, "REDIS_URL: Invalid IPv6 URL"),
        ({"REDIS_URL": "redis://:secret@h:secret"}, "REDIS_URL: Port could not be cast"),
        (
            {"REDIS_URL": "redis://h", "REDIS_PASSWORD_FILE": "/no/such"},
            "REDIS_PASSWORD_FILE=/no/such",
        ),
        ({"EAGLE_FLEET_LOG_LEVEL": "loud"}, "EAGLE_FLEET_LOG_LEVEL='loud'"),
    ],
)
def test_a_bad_value_is_named_unless_it_is_secret(environment: dict[str, str], words: str) -> None:
    """The error names the variable, and the value where that is no secret."""
    with pytest.raises(ConfigError) as caught:
        Settings.from_environment(environment)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 give the file's name, and not the bytes."""
    path = tmp_path / "key"
    path.write_bytes(b"\xffsecret")
    with pytest.raises(ConfigError, match="API_KEY_FILE=") as caught:
        Settings.from_environment({"OPENROUTER_API_KEY_FILE": str(path)})
    assert "secret" not in str(caught.value)
