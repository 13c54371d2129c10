"""The HTTP client against servers that misbehave on real sockets."""

import gzip
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.settings import Secret
from workers import errors
from workers.answers import Allowed, Answer
from workers.openrouter import Client, longest_request_s

KEY = "sk-or-v1-0123456789abcdef"
ALLOWED = Allowed("a/b")
REPLY = {
    "model": "a/b",
    "provider": "P",
    "choices": [{"finish_reason": "stop", "message": {"content": "hi"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.5},
}
BODY = json.dumps(REPLY).encode()
KEEP_ALIVE = b"\n         \n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
DEADLINE_S = 0.6
#: For a busy machine, on top of what the client promises.
SLACK_S = 1.0


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Server:
    """Accepts connections and lets `behave` answer each request on them."""

    def __init__(self, behave: "Callable[[Server, socket.socket], None]") -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.over = threading.Event()
        self._behave = behave
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/api/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while request := self._read(connection):
                    self.requests.append(request)
                    self._behave(self, connection)
            except OSError:
                pass  # the client went away

    @staticmethod
    def _read(connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := connection.recv(65536)):
                return b""
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        whole = bytearray(body)
        while len(whole) < length and (more := connection.recv(1 << 20)):
            whole += more
        return head + b"\r\n\r\n" + bytes(whole)


class Servers:
    def __init__(self) -> None:
        self.started: list[Server] = []

    def __call__(self, behave: Callable[[Server, socket.socket], None]) -> Server:
        self.started.append(Server(behave))
        return self.started[-1]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Starts servers that end with the test; no proxy of the machine stands before them."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    servers = Servers()
    yield servers
    for server in servers.started:
        server.close()


def send(data: bytes) -> Callable[[Server, socket.socket], None]:
    return lambda _, connection: connection.sendall(data)


def drip(first: bytes, then: bytes, every_s: float = 0.05) -> Callable[..., None]:
    """Send `first`, then `then` again and again until the test is over."""

    def behave(server: Server, connection: socket.socket) -> None:
        connection.sendall(first)
        while not server.over.wait(every_s):
            connection.sendall(then)

    return behave


def send_and_close(data: bytes) -> Callable[..., None]:
    def behave(_: Server, connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_RDWR)

    return behave


def client_of(server: Server, connections: int = 2) -> Client:
    return Client(server.url, Secret(KEY), connections)


def fail(client: Client, deadline_s: float = DEADLINE_S) -> errors.RequestError:
    with pytest.raises(errors.RequestError) as caught:
        client.complete(b"{}", deadline_s, ALLOWED)
    return caught.value


def complete(client: Client, request: bytes = b"{}") -> Answer:
    return client.complete(request, 10, ALLOWED)


DRIPS = {
    "chunked keep-alives": (CHUNKED, chunk(KEEP_ALIVE)),
    "keep-alives without chunks": (HEAD + b"Connection: close\r\n\r\n", KEEP_ALIVE),
    "a body of known length": (HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
    "a chunk that does not end": (CHUNKED + b"fffff\r\n", b" "),
    "a chunk's size": (CHUNKED, b"0"),
    "a header": (HEAD + b"X-Slow: ", b"x"),
    "the status line": (b"HTTP/1.1 200 ", b"O"),
    "headers without end": (HEAD, b"X-More: x\r\n"),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize("name", DRIPS)
def test_the_deadline_ends_whatever_drips(name: str, serve: Servers) -> None:
    """Wherever in the response bytes come for ever, or none do, the call ends in time."""
    first, then = DRIPS[name]
    server = serve(drip(first, then))
    began = time.monotonic()
    error = fail(client_of(server))
    took_s = time.monotonic() - began
    assert type(error) in (errors.DeadlinePassed, errors.ConnectionLost), error
    if name != "headers without end":  # http.client gives up after 100 of them
        assert type(error) is errors.DeadlinePassed
    assert error.details.may_be_billed
    assert took_s < DEADLINE_S + SLACK_S


def test_every_call_ends_within_the_stated_bound() -> None:
    """The lease of a claim counts on it: the deadline, and the time to connect and to send."""
    assert longest_request_s(600) == 630


def test_an_answer_after_keep_alives_is_read(serve: Servers) -> None:
    """Keep-alives before the answer, in chunks of their own, are waited through."""
    chunks = chunk(KEEP_ALIVE) * 9 + chunk(BODY[:50]) + chunk(BODY[50:]) + chunk(b"")
    answer = complete(client_of(serve(send(CHUNKED + chunks))))
    assert answer.body == KEEP_ALIVE * 9 + BODY
    assert (answer.provider, answer.cost_usd) == ("P", 0.5)


def test_a_slow_answer_within_the_deadline_is_read(serve: Servers) -> None:
    """A body that drips, but ends in time, is an answer; the next request has all its time."""

    def behave(server: Server, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY))
        for i in range(0, len(BODY), 40):
            server.over.wait(0.02)
            connection.sendall(BODY[i : i + 40])

    server = serve(behave)
    client = client_of(server)
    for _ in range(3):
        assert client.complete(b"x" * 200_000, 2, ALLOWED).body == BODY
    assert server.connections == 1


def test_a_request_is_not_sent_in_the_little_time_that_the_last_one_had(serve: Servers) -> None:
    """An answer comes just before its deadline; the next request, on the same connection, may
    take its time to be sent.
    """

    def behave(server: Server, connection: socket.socket) -> None:
        server.over.wait(0.4)
        connection.sendall(WHOLE[:-5])
        server.over.wait(0.05)
        connection.sendall(WHOLE[-5:])
        server.over.wait(0.4)  # reads nothing of the next request for a while

    server = serve(behave)
    client = client_of(server)
    client.complete(b"{}", 0.6, ALLOWED)
    assert client.complete(b" " * 32_000_000, 5, ALLOWED).body == BODY
    assert server.connections == 1


def test_a_compressed_answer_is_read(serve: Servers) -> None:
    """gzip, with keep-alives inside."""
    packed = gzip.compress(KEEP_ALIVE * 3 + BODY)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    assert complete(client_of(serve(send(head + packed)))).body == KEEP_ALIVE * 3 + BODY


def test_broken_compression_is_a_lost_connection(serve: Servers) -> None:
    """A body that does not unpack counts as one that did not come whole."""
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope"
    error = fail(client_of(serve(send(head))))
    assert type(error) is errors.ConnectionLost
    assert error.details.may_be_billed


def test_a_refused_connection_is_lost_and_not_billed(serve: Servers) -> None:
    """Nothing was sent, so nothing is presumed spent."""
    server = serve(send(b""))
    server.close()
    threading.Event().wait(0.05)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        error = fail(Client(url, Secret(KEY), 1))
    assert type(error) is errors.ConnectionLost
    assert not error.details.may_be_billed


def test_a_host_that_does_not_exist_is_lost_and_not_billed() -> None:
    """A name that does not resolve is a lost connection, not a crash."""
    error = fail(Client("http://no-such-host.invalid", Secret(KEY), 1), 5)
    assert type(error) is errors.ConnectionLost
    assert not error.details.may_be_billed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        CHUNKED + chunk(KEEP_ALIVE) + b"ff\r\n{",
        CHUNKED + chunk(BODY[:50]),
        HEAD + b"Content-Length: 5000\r\n\r\n" + BODY,
        b"SSH-2.0-OpenSSH\r\n",
    ],
    ids=["at once", "in a chunk", "between chunks", "short", "not HTTP"],
)
def test_a_connection_cut_after_the_request_may_be_billed(data: bytes, serve: Servers) -> None:
    """The request was sent: the answer is lost, the money may be spent."""
    error = fail(client_of(serve(send_and_close(data))), 5)
    assert type(error) is errors.ConnectionLost
    assert error.details.may_be_billed


def test_a_reset_in_the_middle_is_a_lost_connection(serve: Servers) -> None:
    """TCP's RST, as of a killed server."""

    def behave(_: Server, connection: socket.socket) -> None:
        connection.sendall(CHUNKED + chunk(KEEP_ALIVE))
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()

    error = fail(client_of(serve(behave)), 5)
    assert type(error) is errors.ConnectionLost
    assert error.details.may_be_billed


def test_a_body_cut_by_an_orderly_end_is_empty_or_not_json(serve: Servers) -> None:
    """Chunks that end as they should, after keep-alives or half an answer: retried by class."""
    empty = serve(send(CHUNKED + chunk(KEEP_ALIVE) * 60 + chunk(b"")))
    half = serve(send(CHUNKED + chunk(BODY[:50]) + chunk(b"")))
    assert type(fail(client_of(empty), 5)) is errors.EmptyBody
    assert type(fail(client_of(half), 5)) is errors.NotJson
    headers = serve(send_and_close(HEAD))  # to the HTTP parser an empty body
    assert type(fail(client_of(headers), 5)) is errors.EmptyBody


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, serve: Servers) -> None:
    """Neither the key nor the prompts go where the run file did not send them."""
    other = serve(send(WHOLE))
    head = b"HTTP/1.1 %d Moved\r\nLocation: %s/x\r\nContent-Length: 0\r\n\r\n"
    server = serve(send(head % (status, other.url.encode())))
    error = fail(client_of(server), 5)
    assert type(error) is errors.ServerFailed
    assert f"{other.url}/x" in str(error)
    assert other.requests == []


def test_the_key_is_in_no_error(serve: Servers) -> None:
    """Whatever fails, and though the server repeats it: neither text, repr, args, context nor
    traceback of an error holds the key.
    """
    echo = json.dumps({"error": {"code": 401, "message": f"bad key {KEY}"}}).encode()
    head = b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n"
    clients = [
        client_of(serve(send(head % len(echo) + echo))),
        client_of(serve(send_and_close(CHUNKED + chunk(b"{")))),
        client_of(serve(drip(CHUNKED, chunk(b" ")))),
        client_of(serve(send_and_close(KEY.encode() + b"\r\n"))),
        Client("http://127.0.0.1:1", Secret(KEY), 1),
        Client("http://127.0.0.1:1", Secret(KEY + "\n"), 1),
        Client("http://127.0.0.1:1", Secret(KEY + "…"), 1),
        Client("no-scheme", Secret(KEY), 1),
    ]
    for client in clients:
        error = fail(client)
        shown = [str(error), repr(error), repr(error.args), repr(error.details.body)]
        shown += traceback.format_exception(error)
        assert KEY not in "".join(shown)
        assert error.__context__ is None
        assert error.__cause__ is None


def test_the_key_is_not_in_the_client(serve: Servers) -> None:
    """A traceback with locals shows a client by its `repr`."""
    assert KEY not in repr(client_of(serve(send(WHOLE))))


def test_the_environments_proxy_is_used(serve: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """`http_proxy` stands before the API, and its deadline is kept too."""
    proxy = serve(send(WHOLE))
    monkeypatch.setenv("http_proxy", f"http://user:pw@127.0.0.1:{proxy.port}")
    complete(Client("http://api.invalid/api/v1", Secret(KEY), 1))
    assert proxy.requests[0].startswith(b"POST http://api.invalid/api/v1/chat/completions")
    assert b"Proxy-Authorization: Basic" in proxy.requests[0]
    slow = serve(drip(HEAD + b"Content-Length: 9999\r\n\r\n", b" "))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{slow.port}")
    began = time.monotonic()
    error = fail(Client("http://api.invalid", Secret(KEY), 1))
    assert type(error) is errors.DeadlinePassed
    assert time.monotonic() - began < DEADLINE_S + SLACK_S


def test_no_proxy_is_honoured(serve: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in `no_proxy` is called directly."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = serve(send(WHOLE))
    complete(client_of(server))
    assert len(server.requests) == 1


def test_a_proxy_that_is_away_is_not_billed(
    serve: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request never left."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    error = fail(Client("http://api.invalid", Secret(KEY), 1))
    assert type(error) is errors.ConnectionLost
    assert not error.details.may_be_billed


def test_a_netrc_never_replaces_the_key(
    serve: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """requests would take the login of a .netrc for this host and drop the key."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password netrc-password\n")
    monkeypatch.setenv("NETRC", str(netrc))
    server = serve(send(WHOLE))
    complete(client_of(server))
    assert f"Authorization: Bearer {KEY}".encode() in server.requests[0]


def test_no_cookie_is_kept(serve: Servers) -> None:
    """No request depends on the one before it."""
    cookie = HEAD + b"Set-Cookie: a=b; Path=/\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
    server = serve(send(cookie))
    client = client_of(server)
    complete(client)
    complete(client)
    assert len(server.requests) == 2
    assert b"Cookie:" not in b"".join(server.requests)


def test_the_pool_keeps_to_its_capacity_and_is_reused(serve: Servers) -> None:
    """As many threads as connections, many requests: no connection more than threads."""
    threads, capacity = 8, 8
    together = threading.Barrier(threads)

    def behave(server: Server, connection: socket.socket) -> None:
        together.wait(10)
        connection.sendall(WHOLE)

    server = serve(behave)
    client = client_of(server, capacity)
    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(lambda _: complete(client), range(threads * 5)))
    assert len(answers) == len(server.requests) == threads * 5
    assert server.connections == capacity


def test_a_connection_that_the_server_closed_is_replaced(serve: Servers) -> None:
    """Between two requests the server may close: the next request opens a new connection."""
    closed = threading.Semaphore(0)

    def behave(_: Server, connection: socket.socket) -> None:
        connection.sendall(WHOLE)
        connection.shutdown(socket.SHUT_RDWR)
        closed.release()

    server = serve(behave)
    client = client_of(server)
    for _ in range(3):
        complete(client)
        assert closed.acquire(timeout=10)
    assert server.connections == 3


def test_requests_say_what_they_must(serve: Servers) -> None:
    """Path, key and content type, and the body as given."""
    server = serve(send(WHOLE))
    complete(client_of(server), b'{"model": "a/b"}')
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /api/v1/chat/completions HTTP/1.1\r\n")
    assert b"Content-Type: application/json" in head
    assert body == b'{"model": "a/b"}'
