"""One HTTP request and its answer, on raw ASGI: what the handlers speak to.

It knows keep-alives, chunked bodies, a client that goes away, and how to break a
connection; it knows nothing of completions or money. `Connection` is the uvicorn
protocol that leaves itself in the scope, so that a wait ends when the client goes, and
a fault can reset it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import JSON, Reply
from .stream import COMMENT
from .wire import KEEPALIVE

Headers = tuple[tuple[bytes, bytes], ...]


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which the application can watch and break."""

    lost = False
    #: Called when the client goes.
    on_lost: Callable[[], None] | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"connection": self}  # type: ignore[dict-item]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost = True
        if self.on_lost is not None:
            self.on_lost()


class Exchange:
    """A request that is read, then answered once."""

    __slots__ = ("_connection", "_receive", "_send", "gone", "scope", "started", "streaming")

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._connection: Connection = scope["extensions"]["connection"]
        #: The status line and headers have left.
        self.started = False
        #: The client has closed the connection.
        self.gone = False
        #: The answer is server-sent events.
        self.streaming = False

    @property
    def query(self) -> dict[str, str]:
        pairs = parse_qs(self.scope["query_string"].decode("latin-1"))
        return {name: values[-1] for name, values in pairs.items()}

    @property
    def connected(self) -> bool:
        """Whether the client can still be written to."""
        return not self._connection.transport.is_closing()

    def bearer(self) -> str:
        """The key of the Authorization header; empty when there is none."""
        for name, value in self.scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                return str(value[7:].strip().decode("latin-1"))
        return ""

    async def body(self) -> bytes:
        message = await self._receive()
        if not message.get("more_body"):
            return bytes(message.get("body", b""))
        parts = [message["body"]]
        while message.get("more_body"):
            message = await self._receive()
            parts.append(message.get("body", b""))
        return b"".join(parts)

    async def reply(self, reply: Reply) -> None:
        """A whole answer at once."""
        length = (b"content-length", str(len(reply.body)).encode())
        await self.start(reply.status, reply.content_type, (length, *reply.headers))
        await self.end(reply.body)

    async def start(self, status: int, content_type: bytes, headers: Headers = ()) -> None:
        self.started = True
        headers = ((b"content-type", content_type), *headers)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def keepalive(self, headers: Headers) -> None:
        """One keep-alive; the first one sends status 200 and the headers before it."""
        if not self.started:
            await self.start(200, EVENTS if self.streaming else JSON, headers)
        await self.write(COMMENT if self.streaming else KEEPALIVE)

    async def pause(self, seconds: float | None, done: asyncio.Future[Any] | None = None) -> bool:
        """Wait so long (None: without end), or until `done`; False when the client goes.

        One future and one timer: cheaper than a task for each thing that is waited for.
        """
        connection, loop = self._connection, asyncio.get_running_loop()
        # A long body leaves reading paused, and a paused socket does not tell its end.
        connection.flow.resume_reading()
        waiter: asyncio.Future[None] = loop.create_future()
        wake = _Wake(waiter)
        timer = None if seconds is None else loop.call_later(seconds, wake)
        connection.on_lost = wake
        if done is not None:
            done.add_done_callback(wake)
        try:
            if not connection.lost:
                await waiter
        finally:
            connection.on_lost = None
            if timer is not None:
                timer.cancel()
            if done is not None:
                done.remove_done_callback(wake)
        self.gone = connection.lost
        return not self.gone

    def close(self) -> None:
        """Close the connection with the body unfinished."""
        self._connection.transport.close()

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        transport = self._connection.transport
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


class _Wake:
    """Resolves a future that may be resolved already; takes any one argument."""

    __slots__ = ("waiter",)

    def __init__(self, waiter: asyncio.Future[None]) -> None:
        self.waiter = waiter

    def __call__(self, _: object = None) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)


EVENTS = b"text/event-stream"
