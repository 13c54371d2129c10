"""The service `setup`: the first step of `docker compose up`, done in a second, each time.

In: the environment, and /fleet/run/run.toml. Out, in a volume that only this project's
containers mount: `redis_password`, `flower_password`,
`grafana_password` (given, or made once) and `run_name`.
Status 2 with what to do about it, and nothing else starts, when the run could not go well or
would spend money that its user does not expect.
"""

import os
import re
import secrets
import socket
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from fleet import run_config
from fleet.errors import ConfigError, FleetError
from fleet.run_config import RunConfig
from fleet.settings import Settings

SETUP = Path("/fleet/setup")
RUN = Path("/fleet/run")
#: The key when none is set: the emulator takes any.
NO_KEY = "emulator"
EMULATOR = ("emulator", 8080)
#: A request may outlast its deadline by this: `workers.openrouter.IDLE_TIMEOUT_S`.
IDLE_TIMEOUT_S = 60.0
#: Characters that mean nothing else in redis.conf, in a URL, or in a list of Flower's users.
PASSWORD = re.compile(r"[A-Za-z0-9._~+/=@%^*-]{8,200}")


def main() -> int:
    try:
        for service in ("redis", "flower", "grafana"):
            keep_password(service)
        check_writable()
        config = run_config.load(RUN / "run.toml")
        check_directory(config)
        check_money(config, read_settings())
        check_grace(config)
        write("run_name", config.run.name)
    except FleetError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    return 0


def read_settings() -> Settings:
    try:
        return Settings.from_environment()
    except ConfigError as error:
        raise ConfigError(
            f"{error} (the containers run as FLEET_UID, user {os.getuid()})"
        ) from None


def keep_password(service: str) -> None:
    """The password of the environment, else the one made earlier, else a new one."""
    name = f"{service}_password"
    given = os.environ.get(name.upper(), "")
    if given and not PASSWORD.fullmatch(given):
        raise ConfigError(f"{name.upper()}: 8 to 200 letters, digits or ._~+/=@%^*-")
    if given or not (SETUP / name).exists():
        write(name, given or secrets.token_urlsafe(24))


def write(name: str, text: str) -> None:
    """A file that the group reads, there whole or not at all."""
    partial = SETUP / f".{name}.partial"
    partial.unlink(missing_ok=True)
    partial.write_text(text, "utf-8")
    partial.chmod(0o640)
    partial.replace(SETUP / name)


def check_writable() -> None:
    try:
        for folder in (RUN, *RUN.iterdir()):
            if folder.is_dir():
                tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"RUN_DIR: user {os.getuid()} cannot write there ({error}): put FLEET_UID=, and the "
            "number that `id -u` prints for the owner of the directory, into .env"
        ) from None


def check_directory(config: RunConfig) -> None:
    if config.directory != RUN:
        raise ConfigError("run.directory: leave it out, with Compose RUN_DIR is the directory")


def check_money(config: RunConfig, settings: Settings) -> None:
    """The emulator when it was asked for, OpenRouter when there is a key, never the other one."""
    url = settings.base_url or config.run.base_url
    emulated = urlsplit(url).hostname == EMULATOR[0]
    runs = emulator_runs()
    if emulated and not runs:
        raise ConfigError(
            f"the run {config.run.name!r} is for the emulator ({url}): add `--profile emulator`, "
            "or set RUN_DIR in .env to the directory of your own run"
        )
    if runs and not emulated:
        raise ConfigError(
            f"the emulator runs, but the run {config.run.name!r} would buy from {url}: to try it "
            "on the emulator set OPENROUTER_BASE_URL=http://emulator:8080/api/v1; to buy, "
            "`docker compose --profile emulator down` first, and no `--profile`"
        )
    if not emulated and settings.api_key.reveal() in ("", NO_KEY):
        raise ConfigError(f"no key for {url}: set OPENROUTER_API_KEY(_FILE) in .env")


def emulator_runs() -> bool:
    try:
        socket.create_connection(EMULATOR, timeout=3).close()
    except OSError:
        return False
    return True


def check_grace(config: RunConfig) -> None:
    longest_s = config.run.deadline_s + IDLE_TIMEOUT_S
    grace_s = int(os.environ["WORKER_GRACE_S"])
    if longest_s >= grace_s:
        raise ConfigError(
            f"run.deadline_s = {config.run.deadline_s:g}: a request may take {longest_s:g} s, but "
            f"a worker is killed {grace_s} s after `docker compose stop`: set WORKER_GRACE_S in "
            f".env to {longest_s + 60:.0f} or more"
        )


if __name__ == "__main__":
    sys.exit(main())
