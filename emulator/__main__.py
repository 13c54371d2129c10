"""`python -m emulator`: serve until SIGTERM or Ctrl-C.

Prints one line with the URL when ready, and writes it to --ready-file (by rename, so
that whoever waits for the file never reads half of it).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn
import uvloop

from . import backends, config
from .app import App
from .books import Books
from .exchange import Connection
from .money import nano_of_usd
from .state import Emulator


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: ours ends connections that hang."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 ended by a signal, 2 the configuration or arguments cannot be used."""
    arguments = _arguments().parse_args(argv)
    _raise_file_limit()
    try:
        settings = config.load(arguments.config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, arguments))
    except (config.ConfigError, backends.BackendError, OSError) as error:
        print(f"emulator: {error}", file=sys.stderr)
        return 2
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m emulator", description="An OpenRouter of your own.")
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="see emulator/faults.toml")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--ready-file", type=Path, help="gets the URL when ready")
    parser.add_argument("--books", type=Path, help="JSON lines of what was billed; goes on there")
    return parser


async def _serve(settings: config.Config, arguments: argparse.Namespace) -> None:
    books = Books(nano_of_usd(settings.balance_usd), arguments.books)
    backend = backends.make(settings)
    await backend.start()
    emulator = Emulator(settings, books, backend)
    sock = _listen(arguments.host, arguments.port)
    server = Server(_uvicorn(App(emulator)))
    _end_on_signals(server, emulator)
    ready = asyncio.create_task(_announce(server, sock, arguments))
    _calm_the_collector()
    await server.serve(sockets=[sock])
    await ready
    await backend.stop()


def _uvicorn(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_level="error",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=8192,
        timeout_keep_alive=90,
        timeout_graceful_shutdown=2,
    )


def _listen(host: str, port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock


def _end_on_signals(server: uvicorn.Server, emulator: Emulator) -> None:
    def end() -> None:
        emulator.closing = True
        server.should_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)


async def _announce(
    server: uvicorn.Server, sock: socket.socket, arguments: argparse.Namespace
) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    host, port = sock.getsockname()
    url = f"http://{host}:{port}/api/v1"
    print(f"emulator listening on {url}", flush=True)
    if arguments.ready_file:
        partial = arguments.ready_file.with_name(arguments.ready_file.name + ".partial")
        partial.write_text(url)
        partial.replace(arguments.ready_file)


def _calm_the_collector() -> None:
    """The books only grow, and hold no cycles: looking through them often is in vain."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def _raise_file_limit() -> None:
    """Thousands of connections at once need as many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
