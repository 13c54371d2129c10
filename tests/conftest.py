"""What tests share: a real Valkey, and a fresh ledger on it.

`valkey` is the URL of one embedded server for the whole session, on a Unix socket. `ledger`
is a run of its own on it, opened with `numbers`; `ledger.open({}, numbers | {…})` changes them.
"""

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fleet import broker
from fleet.ledger import Ledger
from fleet.transitions import Route

#: The one endpoint of the ledger that tests begin with.
ROUTE = Route("p/int4", "P", prompt_nusd=100, completion_nusd=1000, start=8)


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    """URL of a Valkey server that ends with the session."""
    with (
        tempfile.TemporaryDirectory(prefix="eagle-fleet-test-") as folder,
        broker.embedded(Path(folder)) as url,
    ):
        yield url


@pytest.fixture(scope="session")
def client(valkey: str) -> redis.Redis:
    """A client of that server."""
    return broker.connect(valkey)


@pytest.fixture(scope="session")
def numbers() -> dict[str, int | float]:
    """What a feeder opens a run with: times in ms."""
    return {
        "cap": 0,
        "concurrency": 64,
        "burst_ms": 60_000,
        "decrease": 0.5,
        "probe_ms": 5_000,
        "max_tokens": 1000,
        "ranked": 1,
        "share_for_others": 0.05,
    }


@pytest.fixture
def ledger(client: redis.Redis, numbers: dict[str, int | float]) -> Iterator[Ledger]:
    """A run that no other test knows; its keys are deleted afterwards."""
    fresh = Ledger(client, f"test-{uuid.uuid4().hex[:12]}")
    fresh.open({}, numbers)
    fresh.set_routes([ROUTE])
    yield fresh
    client.delete(*fresh.keys.all)
