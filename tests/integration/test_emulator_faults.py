"""Every fault of the emulator as a client sees it, and what it does to the money."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from emulator.fault_kinds import ALTERED, BODIES, CUTS, ERRORS, FREE
from emulator.launch import Running, launch

KEY = {"Authorization": "Bearer sk-or-v1-test"}
MODEL = "moonshotai/kimi-k2.5"


@pytest.fixture(scope="module")
def emulator() -> Iterator[Running]:
    with launch("keepalive_s = 0.02") as running:
        yield running


def post(emulator: Running, text: str = "hello", **fields: Any) -> requests.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
    url = f"{emulator.url}/chat/completions"
    return requests.post(url, json=body, headers=KEY, timeout=20)


def struck(emulator: Running, kind: str, stream: bool = False, **limits: Any) -> requests.Response:
    emulator.set_faults({"kind": kind, **limits})
    return post(emulator, stream=stream)


def billed(emulator: Running) -> int:
    count: int = emulator.books()["billed_requests"]
    return count


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", sorted(ERRORS))
def test_an_error_comes_with_its_status_and_is_free(
    emulator: Running, kind: str, stream: bool
) -> None:
    """Plain or streamed, an error before the first byte has its HTTP status."""
    before = billed(emulator)
    response = struck(emulator, kind, stream)
    assert str(response.status_code) in kind
    assert billed(emulator) == before


def test_the_three_429s_differ_in_their_hint(emulator: Running) -> None:
    """In the header, in the metadata, or nowhere."""
    bare = struck(emulator, "rate_limit_429", retry_after_s=7)
    header = struck(emulator, "rate_limit_429_header", retry_after_s=7)
    metadata = struck(emulator, "rate_limit_429_metadata", retry_after_s=7)
    assert "Retry-After" not in bare.headers
    assert "retry_after_seconds" not in bare.json()["error"]["metadata"]
    assert header.headers["Retry-After"] == "7"
    assert "Retry-After" not in metadata.headers
    assert metadata.json()["error"]["metadata"]["retry_after_seconds"] == 7


def test_an_error_after_the_keepalives_lies_in_a_200(emulator: Running) -> None:
    """Once keep-alives went out, the status is 200 and the error is in the body."""
    response = struck(emulator, "provider_502", after_s=0.1)
    assert response.status_code == 200
    assert response.content.startswith(b"\n         \n")
    assert response.json()["error"]["code"] == 502


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_a_body_that_is_no_completion_is_a_free_200(emulator: Running, kind: str) -> None:
    """Status 200, nothing usable at the top level, nothing billed."""
    before = billed(emulator)
    response = struck(emulator, kind)
    assert response.status_code == 200
    if response.text.startswith("{"):
        assert not response.json().get("choices")
    else:
        assert response.text == "" or response.text.startswith("<!DOCTYPE html>")
    assert billed(emulator) == before


@pytest.mark.parametrize("kind", ["error_200", "error_200_null_fields"])
def test_an_error_in_a_stream_is_a_chunk_with_an_error(emulator: Running, kind: str) -> None:
    """Both shapes: finish_reason `error` and the end, or null and [DONE]."""
    text = struck(emulator, kind, stream=True).text
    chunk = next(line for line in text.split("\n\n") if line.startswith("data: {"))
    value = json.loads(chunk[6:])
    documented = kind == "error_200"
    assert value["error"]["code"] == 429
    assert value["choices"][0]["finish_reason"] == ("error" if documented else None)
    assert text.endswith("data: [DONE]\n\n") is not documented


def test_a_body_cut_after_the_keepalives_is_whitespace(emulator: Running) -> None:
    """The body ends cleanly, so that HTTP is content and JSON is not."""
    response = struck(emulator, "cut_after_keepalives")
    assert response.status_code == 200
    assert response.content
    assert response.content.strip() == b""


def test_a_body_cut_in_the_json_ends_cleanly_or_not(emulator: Running) -> None:
    """`cut_mid_json` is a whole HTTP body, `cut_connection` is not."""
    response = struck(emulator, "cut_mid_json")
    with pytest.raises(json.JSONDecodeError):
        json.loads(response.content)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        struck(emulator, "cut_connection")


def test_a_cut_stream_has_no_finish_reason_and_no_done(emulator: Running) -> None:
    """The stream stops between chunks."""
    text = struck(emulator, "cut_mid_json", stream=True).text
    assert "data: {" in text
    assert '"finish_reason":"' not in text
    assert "[DONE]" not in text


def test_a_reset_is_a_connection_error(emulator: Running) -> None:
    """TCP reset before the first byte."""
    with pytest.raises(requests.exceptions.ConnectionError):
        struck(emulator, "reset")


def test_a_hang_sends_keepalives_or_nothing(emulator: Running) -> None:
    """Under `hang` a read timeout never fires; under `hang_silent` it does."""
    emulator.set_faults({"kind": "hang"})
    with closing(send(emulator)) as client:
        received = b""
        while received.count(b"         ") < 5:
            received += client.recv(1000)
        assert b"{" not in received
    emulator.set_faults({"kind": "hang_silent"})
    with closing(send(emulator)) as client:
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1000)


def test_a_hang_of_limited_length_closes_the_connection(emulator: Running) -> None:
    """After `duration_s` the connection is closed with the body unfinished."""
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        struck(emulator, "hang", duration_s=0.1)
    with pytest.raises(requests.exceptions.ConnectionError):
        struck(emulator, "hang_silent", duration_s=0.1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", sorted(ALTERED))
def test_an_altered_completion_is_billed_unless_it_is_insured(
    emulator: Running, kind: str, stream: bool
) -> None:
    """Broken-off and empty generations are free, all else costs what it says."""
    before = billed(emulator)
    limits = {"duration_s": 0.05} if kind == "slow_drip" else {}
    response = struck(emulator, kind, stream, **limits)
    assert response.status_code == 200
    assert billed(emulator) - before == (kind not in FREE)
    assert emulator.books()["outcomes"][kind] >= 1


def test_altered_completions_look_as_reported(emulator: Running) -> None:
    """The mark that each one leaves."""

    def choice(kind: str) -> dict[str, Any]:
        answer: dict[str, Any] = struck(emulator, kind).json()["choices"][0]
        return answer

    assert choice("finish_error")["error"]["code"] == 502
    assert choice("finish_error")["finish_reason"] == "error"
    assert choice("length")["finish_reason"] == "length"
    assert choice("length_in_reasoning")["message"]["content"] is None
    assert "<|tool_call_begin|>" in choice("markup_in_content")["message"]["content"]
    assert "<|tool_call_begin|>" in choice("markup_in_reasoning")["message"]["reasoning"]
    assert "</think>" in choice("think_leak")["message"]["content"]
    assert choice("empty_content")["message"]["content"] == ""


def test_a_wrong_provider_is_one_that_was_not_allowed(emulator: Running) -> None:
    """The response names a provider outside of `only`; the books charge the pinned one."""
    emulator.set_faults({"kind": "wrong_provider"})
    answer = post(emulator, provider={"only": ["chutes/int4"]}).json()
    assert answer["provider"] != "Chutes"
    assert emulator.billed()[-1]["endpoint"] == "chutes/int4"


def test_an_endpoints_error_falls_back_unless_it_is_pinned(emulator: Running) -> None:
    """A fault of one endpoint is answered by the next one that is allowed."""
    emulator.set_faults({"kind": "rate_limit_429", "endpoint": "chutes/int4"})
    both = {"order": ["chutes/int4", "inceptron/int4"]}
    assert post(emulator, provider=both).json()["provider"] == "Inceptron"
    assert post(emulator, provider={**both, "allow_fallbacks": False}).status_code == 429


def test_a_fault_can_strike_the_first_attempts_only(emulator: Running) -> None:
    """`attempts = 2`: the third request with the same messages succeeds."""
    emulator.set_faults({"kind": "unavailable_503", "attempts": 2})
    statuses = [post(emulator, "the third time").status_code for _ in range(3)]
    assert statuses == [503, 503, 200]


def test_every_group_of_faults_is_seen_here() -> None:
    """A new kind of cut needs a test of its own; the other groups are parametrised."""
    assert set(CUTS) == {
        "cut_after_keepalives",
        "cut_mid_json",
        "cut_connection",
        "reset",
        "hang",
        "hang_silent",
    }


def test_a_client_that_leaves_a_plain_request_is_billed_in_full() -> None:
    """The generation had begun, so it is paid; a fault that fails it anyway is not."""
    with launch("[backend.latency]\nmean_s = 0.3") as emulator:
        send(emulator).close()
        entry = next(iter(wait_until_billed(emulator)))
        assert entry["delivered"] is False
        assert entry["completion_tokens"] > 0
        assert emulator.books()["outcomes"] == {"disconnected": 1}


def test_a_client_that_leaves_a_stream_pays_for_what_was_sent() -> None:
    """A cancelled stream is billed up to the cut; before the first token it is free."""
    with launch('[[faults]]\nkind = "slow_drip"\nduration_s = 2.0') as emulator:
        with closing(send(emulator, stream=True)) as client:
            received = b""
            while received.count(b"data: ") < 3:
                received += client.recv(1000)
        partial = wait_until_billed(emulator)[0]["completion_tokens"]
        emulator.set_faults()
        whole = post(emulator, "raw").json()["usage"]["completion_tokens"]
    assert 0 < partial < whole


def wait_until_billed(emulator: Running) -> list[dict[str, Any]]:
    """The books' entries, as soon as nothing is in flight."""
    while True:
        if emulator.books()["in_flight"] == 0 and emulator.books()["requests"]:
            return emulator.billed()


def test_a_balance_runs_out_and_is_topped_up() -> None:
    """402 when the balance does not cover the request; a top-up lets the next one in."""
    with launch("balance_usd = 0.001") as emulator:
        statuses = [post(emulator, str(number)).status_code for number in range(30)]
        spent = float(emulator.books()["total_usd"])
        emulator.topup(1)
        assert post(emulator, "29").status_code == 200
        key = requests.get(f"{emulator.url}/key", headers=KEY, timeout=20).json()["data"]
    assert statuses[0] == 200
    assert statuses[-1] == 402
    assert spent <= 0.001
    assert key["limit"] == pytest.approx(1.001)
    assert key["limit_remaining"] == pytest.approx(1.001 - key["usage"])


def test_a_small_balance_says_what_it_can_afford() -> None:
    """With the check on max_tokens, the 402 names both numbers."""
    with launch("balance_usd = 0.01\ncheck_max_tokens = true") as emulator:
        message = post(emulator, max_tokens=60000).json()["error"]["message"]
        assert "You requested up to 60000 tokens, but can only afford" in message
        assert post(emulator, max_tokens=100).status_code == 200


def test_the_in_flight_budget_is_a_402_that_may_be_retried() -> None:
    """What only the requests in flight leave no money for may come again later."""
    config = "balance_usd = 0.01\ncheck_max_tokens = true\nin_flight_budget = true\n"
    config += '[[faults]]\nkind = "hang"\nattempts = 1'
    with launch(config) as emulator, closing(send(emulator, max_tokens=3000)) as client:
        client.recv(100)
        refused = post(emulator, "raw", max_tokens=3000)
    assert refused.status_code == 402
    assert refused.headers["Retry-After"] == "1"
    metadata = refused.json()["error"]["metadata"]
    assert metadata["limit_source"] == "openrouter_in_flight_budget"


def test_books_outlive_a_kill(tmp_path: Path) -> None:
    """kill -9: started again on the same file, the books go on."""
    path = tmp_path / "books.jsonl"
    with launch(books=path) as emulator:
        post(emulator)
        total = emulator.books()["total_usd"]
        emulator.process.kill()
        emulator.process.wait()
    with launch(books=path) as emulator:
        assert emulator.books()["total_usd"] == total
        assert emulator.books()["billed_requests"] == 1


def test_a_bad_configuration_ends_it_with_a_message(tmp_path: Path) -> None:
    """Exit code 2, the key on stderr, no traceback."""
    path = tmp_path / "bad.toml"
    path.write_text("[backend]\nknd = 1")
    command = [sys.executable, "-m", "emulator", "--config", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert "knd" in ended.stderr
    assert "Traceback" not in ended.stderr


def send(emulator: Running, **fields: Any) -> socket.socket:
    """A connection on which a request was sent and nothing was read."""
    host, port = emulator.url.removeprefix("http://").split("/")[0].split(":")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "raw"}], **fields}
    data = json.dumps(body).encode()
    client = socket.create_connection((host, int(port)), timeout=20)
    head = "POST /api/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
    client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return client
