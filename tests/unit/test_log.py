"""Logs: what a line holds, and what it never holds."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from fleet.log import Redacting, setup
from fleet.settings import Secret

KEY = "sk-or-v1-0123456789abcdef"
ODD = "pa\"ss\\wo'rd/é"


@pytest.fixture(params=[True, False], ids=["JSON", "plain"])
def output(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What a logger `fleet.test` writes, in both forms."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Redacting([Secret(KEY), Secret(ODD), Secret("")], request.param))
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)


#: Registered nowhere, so that only the handlers of these tests see its records.
log = logging.Logger("fleet.test")


class Shows:
    """An object whose `repr` holds a secret."""

    def __repr__(self) -> str:
        return f"<{KEY}>"


@pytest.mark.parametrize("secret", [KEY, ODD], ids=["key", "odd"])
def test_a_secret_reaches_no_line(output: io.StringIO, secret: str) -> None:
    """In the message, an argument, an exception, its cause, a URL or an extra: struck out."""
    log.info("the key is %s", secret)
    log.info(f"url https://h/?k={quote(secret, safe='')}")
    log.info("as repr %r, in a list %s", secret, [secret])
    log.info("x", extra={"action": secret})
    try:
        try:
            raise ValueError(f"bad {secret}")
        except ValueError as error:
            raise KeyError(secret) from error
    except KeyError:
        log.exception("failed")
    text = output.getvalue()
    spellings = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")}
    assert not [s for s in spellings if s in text]
    assert text.count("***") >= 6


def test_an_object_that_shows_a_secret_is_struck_out_too(output: io.StringIO) -> None:
    """Whoever logs it, in whatever object."""
    log.warning("%s", Shows())
    assert "<***>" in output.getvalue()


def test_arguments_that_do_not_fit_are_logged_and_not_printed(
    output: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    """logging itself would print message and arguments past every formatter."""
    log.info("%d requests", KEY)
    log.info("one %s two %s", KEY)
    assert KEY not in output.getvalue() + capsys.readouterr().err
    assert "%d requests" in output.getvalue()


def test_percent_signs_without_arguments_are_text(output: io.StringIO) -> None:
    """A message is formatted once."""
    log.info("100 % sure: %s")
    log.info("%s", "50 %d")
    assert "100 % sure: %s" in output.getvalue()
    assert "50 %d" in output.getvalue()


def test_a_json_line_is_one_object_with_its_names() -> None:
    """Level, logger, message, the named extras and the traceback, on one line."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Redacting([Secret(KEY)], as_json=True))
    log.addHandler(handler)
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        extra = {"action": "failed", "run": "r", "prompt_id": "p", "dataset": "D"}
        log.exception("it\nfailed: %s", "é", extra=extra)
    log.removeHandler(handler)
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["message"] == "it\nfailed: é"
    assert entry["level"] == "error"
    assert entry["logger"] == "fleet.test"
    assert {key: entry[key] for key in extra} == extra
    assert "RuntimeError: two\nlines" in entry["traceback"]
    assert entry["time"].endswith("+00:00")


def test_setup_writes_to_standard_error_at_its_level(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One handler for all; libraries that report every message stay quiet."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    try:
        setup("warning", [Secret(KEY)])
        logging.getLogger("any").info("quiet")
        logging.getLogger("any").warning("loud %s", KEY)
        logging.getLogger("urllib3").info("quiet")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "loud ***"
