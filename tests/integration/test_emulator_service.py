"""The emulator as a process: answers, keep-alives, streams, routing, the catalog."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
import requests

from emulator.books import messages_key
from emulator.launch import Running, launch

KEY = {"Authorization": "Bearer sk-or-v1-test"}
MODEL = "moonshotai/kimi-k2.5"


@pytest.fixture(scope="module")
def emulator() -> Iterator[Running]:
    with launch('management_keys = ["boss"]\ngeneration_delay_s = 0.0') as running:
        yield running


def ask(emulator: Running, text: str, **fields: Any) -> requests.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
    url = f"{emulator.url}/chat/completions"
    return requests.post(url, json=body, headers=KEY, timeout=20)


def test_a_completion_is_billed_at_the_cost_that_it_names(emulator: Running) -> None:
    """The books' entry has the response's id, counts and exact cost."""
    response = ask(emulator, "what does it cost?")
    answer = json.loads(response.text, parse_float=Decimal)
    entry = next(row for row in emulator.billed() if row["id"] == answer["id"])

    assert response.headers["X-Generation-Id"] == answer["id"]
    assert re.fullmatch(r"gen-\d{10}-[0-9A-Za-z]{20}", answer["id"])
    assert Decimal(entry["cost_usd"]) == answer["usage"]["cost"]
    assert entry["completion_tokens"] == answer["usage"]["completion_tokens"]
    assert entry["messages_key"] == messages_key(
        [{"role": "user", "content": "what does it cost?"}]
    )
    assert entry["delivered"] is True
    assert answer["model"] == "moonshotai/kimi-k2.5-0127"


def test_the_same_messages_get_the_same_text(emulator: Running) -> None:
    """Text and counts depend on the messages alone."""
    pin = {"only": ["chutes/int4"]}
    first, second = (ask(emulator, "again", provider=pin).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert first["usage"] == second["usage"]
    assert first["id"] != second["id"]


def test_max_tokens_cuts_and_says_length(emulator: Running) -> None:
    """No completion is longer than max_tokens, and a cut one has finish_reason length."""
    answer = ask(emulator, "short", max_tokens=5).json()
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"


def test_logprobs_come_where_the_endpoint_has_them(emulator: Running) -> None:
    """Each token has its bytes, and they spell the content; unasked, logprobs is null."""
    choice = ask(emulator, "likely?", logprobs=True, top_logprobs=1).json()["choices"][0]
    spelled = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert spelled.decode() == choice["message"]["content"]
    assert ask(emulator, "likely?").json()["choices"][0]["logprobs"] is None


def test_a_pinned_request_is_served_by_the_pinned_provider(emulator: Running) -> None:
    """`only` by tag decides; a tag that does not exist is the documented 404."""
    for tag, name in (("inceptron/int4", "Inceptron"), ("fireworks", "Fireworks")):
        assert ask(emulator, "who?", provider={"only": [tag]}).json()["provider"] == name
    refused = ask(emulator, "who?", provider={"only": ["nobody/fp1"]})
    assert refused.status_code == 404
    assert "No allowed providers are available" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"model": "moonshotai/kimi-k2.5", "messages": []}', 400),
        (b'{"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]}', 400),
        (b'{"model": "moonshotai/kimi-k2.5", "messages": "x"}', 400),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(emulator: Running, body: bytes, status: int) -> None:
    """Malformed requests are answered as errors, and cost nothing."""
    before = emulator.books()["total_usd"]
    url = f"{emulator.url}/chat/completions"
    response = requests.post(url, data=body, headers=KEY, timeout=20)
    assert response.status_code == status == response.json()["error"]["code"]
    assert emulator.books()["total_usd"] == before


def test_without_a_key_the_answer_is_401(emulator: Running) -> None:
    """As recorded: `Missing Authentication header`."""
    response = requests.post(f"{emulator.url}/chat/completions", json={}, timeout=20)
    assert response.status_code == 401
    assert response.json()["error"]["message"] == "Missing Authentication header"


def test_a_stream_has_comments_chunks_usage_and_done(emulator: Running) -> None:
    """Comment first, role in every chunk, usage beside choices in the last, then [DONE]."""
    plain = ask(emulator, "stream", provider={"only": ["chutes/int4"]}).json()
    response = ask(emulator, "stream", provider={"only": ["chutes/int4"]}, stream=True)
    lines = [line for line in response.text.split("\n\n") if line]
    chunks = [json.loads(line[6:]) for line in lines[1:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]

    assert response.headers["Content-Type"] == "text/event-stream"
    assert (lines[0], lines[-1]) == (": OPENROUTER PROCESSING", "data: [DONE]")
    assert all(delta["role"] == "assistant" for delta in deltas)
    message = plain["choices"][0]["message"]
    assert "".join(delta["content"] for delta in deltas) == message["content"]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == message["reasoning"]
    assert chunks[-1]["usage"] == plain["usage"]
    assert [c["choices"][0]["finish_reason"] for c in chunks[-3:]] == [None, "stop", "stop"]


def test_the_catalog_lists_endpoints_with_prices_per_token(emulator: Running) -> None:
    """Prices are strings in USD per token; the tag and quantisation are there."""
    listing = requests.get(f"{emulator.url}/models/{MODEL}/endpoints", timeout=20).json()
    first = listing["data"]["endpoints"][0]
    assert first["pricing"]["prompt"] == "0.00000044"
    assert (first["tag"], first["quantization"]) == ("chutes/int4", "int4")
    assert first["name"] == "Chutes | moonshotai/kimi-k2.5-0127"
    models = requests.get(f"{emulator.url}/models", timeout=20).json()
    assert models["data"][0]["canonical_slug"] == "moonshotai/kimi-k2.5-0127"


def test_key_credits_and_generation_are_read_with_the_right_key(emulator: Running) -> None:
    """/key for every key, /credits for a management key, /generation once it is known."""
    answer = ask(emulator, "generation").json()

    def read(path: str, key: str = "any") -> requests.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return requests.get(f"{emulator.url}/{path}", headers=headers, timeout=20)

    assert read("key").json()["data"]["limit_remaining"] is None
    assert [read("credits").status_code, read("credits", "boss").status_code] == [403, 200]
    generation = read(f"generation?id={answer['id']}").json()["data"]
    assert generation["total_cost"] == answer["usage"]["cost"]
    assert read("generation?id=gen-unknown").status_code == 404


def test_an_endpoint_can_be_changed_while_it_runs(emulator: Running) -> None:
    """Status and price change from the next request on."""
    emulator.change_endpoint("fireworks", status=-5, completion_usd_per_m=30.0)
    listing = requests.get(f"{emulator.url}/models/{MODEL}/endpoints", timeout=20).json()
    assert listing["data"]["endpoints"][2]["status"] == -5
    assert listing["data"]["endpoints"][2]["pricing"]["completion"] == "0.00003"
    emulator.change_endpoint("fireworks", status=0, completion_usd_per_m=3.0)


def test_a_slow_completion_is_preceded_by_keepalives() -> None:
    """Status 200 and whitespace come while the completion is awaited, then the JSON."""
    config = "keepalive_s = 0.05\n[backend.latency]\nmean_s = 0.4"
    with launch(config) as emulator:
        raw = ask(emulator, "slow").content
    before = raw[: raw.index(b"{")]
    assert before
    assert before == b"\n         \n" * (len(before) // 11)
    assert json.loads(raw)["choices"]


def test_books_equal_what_clients_saw_under_load() -> None:
    """300 requests at once: the sum of the costs in the responses is the books' total."""
    with launch("[backend.latency]\nkind = 'uniform'\nmean_s = 0.1") as emulator:
        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(lambda n: ask(emulator, f"load {n}").text, range(300)))
        books = emulator.books()
    parsed = [json.loads(text, parse_float=Decimal) for text in answers]
    assert sum(answer["usage"]["cost"] for answer in parsed) == Decimal(books["total_usd"])
    assert books["billed_requests"] == books["outcomes"]["ok"] == 300
    assert books["max_in_flight"] > 10


def test_sigterm_ends_it_quickly_with_requests_in_flight() -> None:
    """Exit code 0 within seconds, although a request hangs."""
    with launch('[[faults]]\nkind = "hang"') as emulator, send(emulator) as client:
        client.recv(100)
        emulator.process.send_signal(signal.SIGTERM)
        assert emulator.process.wait(timeout=5) == 0


def send(emulator: Running, **fields: Any) -> socket.socket:
    """A connection on which a request was sent and nothing was read."""
    host, port = emulator.url.removeprefix("http://").split("/")[0].split(":")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "raw"}], **fields}
    data = json.dumps(body).encode()
    client = socket.create_connection((host, int(port)), timeout=20)
    head = "POST /api/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
    client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return client
