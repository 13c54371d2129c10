"""The emulator's configuration, chance and books."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from emulator import config
from emulator.books import Books, Entry, messages_key
from emulator.chance import draw, throw
from emulator.config import ConfigError

KEYS = [messages_key([{"role": "user", "content": str(number)}]) for number in range(2000)]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("sed = 1", "sed"),
        ('[backend]\nkind = "gpt"', "$.backend.kind"),
        ('[[faults]]\nkind = "server_5000"', "server_5000"),
        ('[[faults]]\nkind = "server_500"\nrate = 2', "rate"),
        ('[[faults]]\nkind = "server_500"\nendpoint = "nobody"', "nobody"),
        ('[[endpoints]]\ntag = "a"\nprovider_name = "A"\nprompt_usd_per_m = 0.1234', "0.1234"),
        ("balance_usd = -1", "balance_usd"),
        ("seed = ", "Invalid value"),
    ],
)
def test_a_bad_configuration_is_refused_by_name(tmp_path: Path, text: str, part: str) -> None:
    """The message names the file and the key or value that is wrong."""
    path = tmp_path / "emulator.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert str(path) in str(caught.value)
    assert part in str(caught.value)


def test_the_example_configuration_loads() -> None:
    """`emulator/faults.toml` is valid."""
    assert config.load(Path(config.__file__).with_name("faults.toml")).faults


@pytest.mark.parametrize("shape", ["constant", "uniform", "exponential", "lognormal"])
def test_distributions_have_the_stated_mean(shape: Any) -> None:
    """Whatever the shape, the mean is the mean."""
    values = [draw(shape, 2.0, 0.5, (number + 0.5) / 4000) for number in range(4000)]
    assert mean(values) == pytest.approx(2.0, rel=0.02)


def test_the_text_of_a_conversation_does_not_depend_on_the_attempt() -> None:
    """Asked again, the same messages get the same size and text; route and latency vary."""
    first, second = throw(0, KEYS[0], 0), throw(0, KEYS[0], 1)
    assert (first.size, first.text) == (second.size, second.text)
    assert first.latency != second.latency


def entry(number: int, nano: int = 453640) -> Entry:
    return Entry(f"gen-{number}", KEYS[number], "chutes/int4", nano, 21, 202, 1.0, True)


def test_books_add_up_exactly() -> None:
    """A thousand costs add up to the nano-USD, where floats would drift."""
    books = Books()
    for number in range(1000):
        books.charge(entry(number, 440 * number + 1))
    expected = sum(Decimal(440 * number + 1) / 10**9 for number in range(1000))
    assert Decimal(books.summary()["total_usd"]) == expected
    assert Decimal(books.summary()["endpoints"]["chutes/int4"]["cost_usd"]) == expected


def test_books_on_disk_go_on_where_they_ended(tmp_path: Path) -> None:
    """Entries and top-ups are there again when the file is opened again."""
    path = tmp_path / "books.jsonl"
    first = Books(10**9, path)
    first.charge(entry(1))
    first.topup(5 * 10**9)
    again = Books(10**9, path)
    assert again.entries == first.entries
    assert again.remaining_nano == 6 * 10**9 - 453640


def test_a_conversation_is_known_by_its_content_not_its_spelling() -> None:
    """Key order does not matter; text, also outside ASCII, does."""
    assert messages_key([{"role": "user", "content": "é"}]) == messages_key(
        [{"content": "é", "role": "user"}]
    )
    assert messages_key([{"role": "user", "content": "e"}]) != KEYS[0]
    assert len(KEYS[0]) == 32
