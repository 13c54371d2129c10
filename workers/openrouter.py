"""One request to OpenRouter: send it and read all of it in time.

In: a request body. Out: an `Answer`, or one of `workers.errors`. Invariant: every call ends
within `longest_request_s` of its deadline, however the bytes drip; the key is in no error.
Knows nothing of Redis, Celery or retries.

A read timeout bounds the silence between two bytes, and keep-alives break the silence for as
long as they come. So each read gets the time that is left until the deadline (`_InTime`):
below the HTTP parser, where neither a slow header, nor a slow chunk, nor a slow body escapes.
"""

import http.client
import io
import socket
import threading
import time
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection

from fleet.settings import Secret
from workers import errors
from workers.answers import Allowed, Answer, read_answer

#: For one address of the host to accept, and for the request to be sent.
CONNECT_TIMEOUT_S = 15.0
#: OpenRouter sends keep-alives while it waits, so silence for this long means a dead connection.
IDLE_TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 16
#: Seconds of silence after which TCP asks, between two asks, and asks before it gives up.
TCP_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
#: Failures before a request could be sent: it cannot be billed.
NOT_SENT = (
    exceptions.NewConnectionError,
    exceptions.ConnectTimeoutError,
    exceptions.ProxyError,
    exceptions.SSLError,
    exceptions.LocationParseError,
    requests.exceptions.InvalidHeader,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)


def longest_request_s(deadline_s: float) -> float:
    """Within this, every call of `Client.complete` has ended: neither connecting nor sending
    looks at the deadline.
    """
    return deadline_s + 2 * CONNECT_TIMEOUT_S


#: `ends_at` of the request that this thread makes, on the monotonic clock.
_clock = threading.local()


class _InTime(io.RawIOBase):
    """A socket's bytes, none of them after the deadline."""

    def __init__(self, raw: Any, sock: Any, ends_at: float) -> None:
        self._raw = raw
        self._sock = sock
        self._ends_at = ends_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline passed")
        self._sock.settimeout(min(IDLE_TIMEOUT_S, left_s))
        return int(self._raw.readinto(buffer))

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        raw: Any = self.fp
        self.fp = io.BufferedReader(_InTime(raw.detach(), sock, _clock.ends_at))


class _Http(HTTPConnection):
    response_class = _Response


class _Https(HTTPSConnection):
    response_class = _Response


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


class Adapter(HTTPAdapter):
    """Reads in time, and has TCP ask after a connection that may be lost behind a NAT."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        options = [*HTTPConnection.default_socket_options]
        options.append((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
        for name, value in TCP_KEEPALIVE.items():
            if hasattr(socket, name):
                options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
        super().init_poolmanager(*args, socket_options=options, **kwargs)
        self._read_in_time(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        if not proxy.lower().startswith("socks"):
            self._read_in_time(manager)
        return manager

    @staticmethod
    def _read_in_time(manager: Any) -> None:
        manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class Client:
    """A pooled session to one API root. Safe to share between threads."""

    def __init__(self, base_url: str, api_key: Secret, connections: int) -> None:
        self.url = base_url.rstrip("/") + "/chat/completions"
        self._key = api_key
        self._session = requests.Session()
        adapter = Adapter(pool_connections=1, pool_maxsize=connections)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)
        # Read the environment's proxies and certificates once: requests would look for them, and
        # for a .netrc that could replace the key, at every request.
        found = self._session.merge_environment_settings(self.url, {}, None, None, None)
        self._session.proxies, self._session.verify = found["proxies"], found["verify"]
        self._session.trust_env = False
        # No request may depend on the one before it; also keeps the jar out of the threads' way.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._session.headers.update(
            {
                "Authorization": f"Bearer {api_key.reveal()}".encode(),
                "Content-Type": "application/json",
                "X-OpenRouter-Title": "eagle-fleet",
            }
        )

    def complete(self, request: bytes, deadline_s: float, allowed: Allowed) -> Answer:
        """Send one chat completion and wait for all of it.

        Raises:
            workers.errors.RequestError: anything but a finished answer from an allowed provider.
        """
        reply = self._exchange(request, deadline_s)
        if isinstance(reply, errors.RequestError):
            # Raised here, where no exception of requests, which carries the key, is its context.
            raise reply
        return read_answer(*reply, allowed)

    def _exchange(
        self, request: bytes, deadline_s: float
    ) -> tuple[int, Any, bytes] | errors.RequestError:
        """Status, headers and whole body."""
        _clock.ends_at = time.monotonic() + deadline_s
        timeouts = (min(CONNECT_TIMEOUT_S, deadline_s), min(IDLE_TIMEOUT_S, deadline_s))
        body = bytearray()
        answered = False
        try:
            # A redirect is not followed: it would take the prompts, and to the same host on
            # another path the key, where the run file did not send them.
            with self._session.post(
                self.url, data=request, stream=True, timeout=timeouts, allow_redirects=False
            ) as response:
                answered = True
                for chunk in response.iter_content(CHUNK_BYTES):
                    body += chunk
                return response.status_code, response.headers, self._without_key(bytes(body))
        except (requests.exceptions.RequestException, exceptions.HTTPError, OSError) as error:
            return self._lost(error, answered, f"{len(body)} bytes came")

    def _lost(self, error: Exception, answered: bool, so_far: str) -> errors.RequestError:
        causes = list(_causes(error))
        timed_out = (exceptions.ReadTimeoutError, requests.exceptions.ReadTimeout)
        if any(isinstance(cause, timed_out) for cause in causes):
            return errors.DeadlinePassed(errors.Details(so_far, may_be_billed=True))
        # What is not of requests failed on this machine.
        sent = isinstance(error, requests.exceptions.RequestException)
        sent = sent and not any(isinstance(cause, NOT_SENT) for cause in causes)
        said = self._without_key(f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        words = said.decode()[:300]
        if isinstance(error, requests.exceptions.InvalidHeader):
            words = "the API key has a character that no header can hold"
        return errors.ConnectionLost(errors.Details(words, may_be_billed=answered or sent))

    def _without_key(self, text: bytes) -> bytes:
        """What a server says may repeat the key that it was shown."""
        key = self._key.reveal().encode()
        return text.replace(key, b"***") if self._key.telling() else text


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception of requests and those that it was made of."""
    yield error
    for part in (*error.args, getattr(error, "reason", None)):
        if isinstance(part, BaseException):
            yield from _causes(part)
