"""What the account says of its money, from a real server's answers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fleet.settings import Secret
from producer.account import Account, AccountError, Balance, KeyRefused

Replies = dict[str, tuple[int, Any]]


@pytest.fixture
def replies() -> Replies:
    """What is answered to each path: status and `data`."""
    return {
        "/key": (200, {"limit_remaining": 100.0, "usage": 3.0}),
        "/credits": (200, {"total_credits": 25.0, "total_usage": 20.0}),
    }


@pytest.fixture
def account(replies: Replies) -> Iterator[Account]:
    """An account behind a real socket."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, data = replies[self.path]
            body = json.dumps({"data": data}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Account(f"http://127.0.0.1:{server.server_port}", Secret("sk-or-v1-0123456789"))
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_is_left_is_the_less_of_the_keys_limit_and_the_credits(
    account: Account, replies: Replies
) -> None:
    """Either may be the one that ends the run."""
    assert account.balance() == Balance(5.0, 3.0)
    replies["/key"] = (200, {"limit_remaining": 2.0, "usage": 3.0})
    assert account.balance() == Balance(2.0, 3.0)
    replies["/key"] = (200, {"limit_remaining": None})
    assert account.balance() == Balance(5.0, 0.0)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_key_that_may_not_see_the_credits_is_asked_once(
    account: Account, replies: Replies, status: int
) -> None:
    """Only a management key is told; what the key says of itself stays."""
    replies["/credits"] = (status, None)
    assert account.balance() == Balance(100.0, 3.0)
    del replies["/credits"]
    assert account.balance() == Balance(100.0, 3.0)


def test_a_passing_failure_of_the_credits_is_not_taken_for_no_limit(
    account: Account, replies: Replies
) -> None:
    """What was known before is better than nothing; they are asked again."""
    replies["/credits"] = (503, None)
    with pytest.raises(AccountError):
        account.balance()
    replies["/credits"] = (200, {"total_credits": 25.0, "total_usage": 20.0})
    assert account.balance() == Balance(5.0, 3.0)


@pytest.mark.parametrize("value", ["n/a", {}, True, float("nan")])
def test_what_is_no_amount_of_money_is_an_error_that_says_so(
    account: Account, replies: Replies, value: Any
) -> None:
    """Not a traceback, and not taken for no limit."""
    replies["/key"] = (200, {"limit_remaining": value})
    with pytest.raises(AccountError, match="limit_remaining"):
        account.balance()


def test_a_disabled_key_is_a_refused_key(account: Account, replies: Replies) -> None:
    """403 as 401: trying again later does not help."""
    replies["/key"] = (403, None)
    with pytest.raises(KeyRefused, match="OPENROUTER_API_KEY"):
        account.balance()
