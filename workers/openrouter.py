"""One request to OpenRouter: send it and read all of it in time.

In: a request body. Out: an `Answer`, or one of `workers.errors`. Invariant: every call ends,
at the latest IDLE_TIMEOUT_S after its deadline. Knows nothing of Redis, Celery or retries.
"""

import socket
import time
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from fleet.settings import Secret
from workers import errors
from workers.answers import Allowed, Answer, read_answer

CONNECT_TIMEOUT_S = 15.0
#: OpenRouter sends keep-alives while it waits, so silence for this long means a dead connection.
IDLE_TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 16


class KeepAliveAdapter(HTTPAdapter):
    """Sends TCP keep-alives, so that a connection lost behind a NAT is noticed."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        keepalive = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = [*HTTPConnection.default_socket_options, keepalive]
        super().init_poolmanager(*args, socket_options=options, **kwargs)


class Client:
    """A pooled session to one API root. Safe to share between threads."""

    def __init__(self, base_url: str, api_key: Secret, connections: int) -> None:
        self.url = base_url.rstrip("/") + "/chat/completions"
        self._session = requests.Session()
        adapter = KeepAliveAdapter(pool_connections=1, pool_maxsize=connections)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)
        # Read the environment's proxies once: requests would look for them, and for a .netrc
        # that could replace the key, at every request.
        self._session.proxies = dict(get_environ_proxies(self.url))
        self._session.trust_env = False
        # No request may depend on the one before it; also keeps the jar out of the threads' way.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._session.headers.update(
            {
                "Authorization": f"Bearer {api_key.reveal()}",
                "Content-Type": "application/json",
                "X-OpenRouter-Title": "eagle-fleet",
            }
        )

    def complete(self, request: bytes, deadline_s: float, allowed: Allowed) -> Answer:
        """Send one chat completion and wait for all of it.

        Raises:
            workers.errors.RequestError: anything but a finished answer from an allowed provider.
        """
        status, headers, body = self._exchange(request, deadline_s)
        return read_answer(status, headers, body, allowed)

    def _exchange(self, request: bytes, deadline_s: float) -> tuple[int, Any, bytes]:
        """Status, headers and whole body. Keep-alives defeat a read timeout, so the clock is
        looked at whenever bytes come.
        """
        ends_at = time.monotonic() + deadline_s
        idle_s = min(IDLE_TIMEOUT_S, deadline_s)
        sent = False
        try:
            with self._session.post(
                self.url, data=request, stream=True, timeout=(CONNECT_TIMEOUT_S, idle_s)
            ) as response:
                sent = True
                chunks = []
                for chunk in response.iter_content(CHUNK_BYTES):
                    chunks.append(chunk)
                    if time.monotonic() > ends_at:
                        raise _deadline(f"{deadline_s:g} s, keep-alives only")
                return response.status_code, response.headers, b"".join(chunks)
        except requests.exceptions.ConnectTimeout as error:
            raise errors.ConnectionLost(errors.Details(_words(error))) from None
        except requests.exceptions.Timeout as error:
            raise _deadline(_words(error)) from None
        except (requests.exceptions.RequestException, HTTPError, OSError) as error:
            if "timed out" in str(error).lower():
                raise _deadline(_words(error)) from None
            details = errors.Details(_words(error), may_be_billed=sent)
            raise errors.ConnectionLost(details) from None


def _deadline(message: str) -> errors.DeadlinePassed:
    return errors.DeadlinePassed(errors.Details(message, may_be_billed=True))


def _words(error: Exception) -> str:
    """What a library's exception says, without the request it carries."""
    return f"{type(error).__name__}: {error}"[:300]
