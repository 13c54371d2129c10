"""The run file: what it means, and how each mistake in it is named."""

from pathlib import Path

import pytest

from fleet.errors import ConfigError
from fleet.run_config import OWN_FIELDS, load

GOOD = """
[run]
name = "kimi"
model = "moonshotai/kimi-k2.5"

[[datasets]]
name = "B1"
path = "b1.jsonl"
"""


def write(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def with_key(table: str, key: str, value: str) -> str:
    """The good file with one more or other key."""
    heading = "[[datasets]]" if table == "datasets" else f"[{table}]"
    before, _, after = GOOD.partition(heading)
    own, _, others = after.partition("\n\n")
    kept = [line for line in own.splitlines() if not line.startswith(f"{key} =")]
    return "\n".join([before, heading, f"{key} = {value}", *kept, "", others])


def problem(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def test_a_small_file_has_its_defaults(tmp_path: Path) -> None:
    """Name, model and one dataset are enough."""
    config = load(write(tmp_path, GOOD))
    assert (config.run.cap_usd, config.run.concurrency, config.run.deadline_s) == (0, 64, 600)
    assert config.sampling.identity() == {
        "temperature": 1.0, "top_p": 1.0, "reasoning": None, "extra": {},
    }  # fmt: skip
    assert config.datasets[0].patterns() == ["b1.jsonl"]
    assert config.directory == tmp_path.resolve()
    assert load(config.path, concurrency=7).run.concurrency == 7


def test_a_run_lives_where_its_file_says(tmp_path: Path) -> None:
    """The folder of a `run.toml`, `runs/<name>` beside any other, or `run.directory`."""
    here = tmp_path.resolve()
    assert load(write(tmp_path, GOOD, "kimi.toml")).directory == here / "runs" / "kimi"
    named = with_key("run", "directory", '"out"')
    assert load(write(tmp_path, named)).directory == here / "out"


def test_raising_max_tokens_or_logprobs_buys_nothing_again(tmp_path: Path) -> None:
    """They are no part of what makes a prompt the same."""
    plain = load(write(tmp_path, GOOD)).sampling
    text = with_key("sampling", "max_tokens", "9") + "\nlogprobs = true\n"
    more = load(write(tmp_path, text)).sampling
    assert more.max_tokens == 9
    assert more.identity() == plain.identity()


@pytest.mark.parametrize(
    ("table", "key", "value", "words"),
    [
        ("run", "name", '"a b"', "run.name = 'a b'"),
        ("run", "name", '""', "run.name = ''"),
        ("run", "name", '"../x"', "run.name = '../x'"),
        ("run", "name", "5", "run.name = 5: Expected `str`, got `int`"),
        ("run", "model", '"kimi"', "run.model = 'kimi'"),
        ("run", "model", '"a/"', "run.model = 'a/'"),
        ("run", "model", '"a/b c"', "run.model = 'a/b c'"),
        ("run", "cap_usd", "-1", "run.cap_usd = -1.0"),
        ("run", "cap_usd", "nan", "run.cap_usd = nan"),
        ("run", "cap_usd", "inf", "run.cap_usd = inf"),
        ("run", "cap_usd", '"100"', "run.cap_usd = '100': Expected `float`, got `str`"),
        ("run", "concurrency", "0", "run.concurrency = 0"),
        ("run", "concurrency", "1.5", "run.concurrency = 1.5: Expected `int`, got `float`"),
        ("run", "concurrency", "true", "run.concurrency = True: Expected `int`, got `bool`"),
        ("run", "deadline_s", "0", "run.deadline_s = 0.0"),
        ("run", "deadline_s", "inf", "run.deadline_s = inf"),
        ("run", "max_attempts", "0", "run.max_attempts = 0"),
        ("run", "base_url", '"openrouter.ai"', "run.base_url = 'openrouter.ai'"),
        ("run", "base_url", '""', "run.base_url = ''"),
        ("run", "colour", "1", "[run]: Object contains unknown field `colour`"),
        ("sampling", "temperature", "2.5", "sampling.temperature = 2.5"),
        ("sampling", "temperature", "nan", "sampling.temperature = nan"),
        ("sampling", "top_p", "0", "sampling.top_p = 0.0"),
        ("sampling", "top_p", "1.1", "sampling.top_p = 1.1"),
        ("sampling", "max_tokens", "0", "sampling.max_tokens = 0"),
        (
            "sampling",
            "reasoning",
            '"high"',
            "sampling.reasoning = 'high': Expected `object | null`",
        ),
        ("sampling", "seed", "1", "[sampling]: Object contains unknown field `seed`"),
        ("sampling", "extra", "{ stream = true }", "sampling.extra.stream = True"),
        ("providers", "only", '"chutes"', "providers.only = 'chutes': Expected `array`"),
        ("providers", "only", "[1]", "providers.only[0] = 1: Expected `str`, got `int`"),
        ("providers", "order", "[]", "[providers]: Object contains unknown field `order`"),
        ("datasets", "name", '"a|b"', "dataset name 'a|b'"),
        ("datasets", "path", '""', "dataset B1: path = ''"),
        ("datasets", "path", "[]", "dataset B1: path = []"),
        ("datasets", "path", '["a", ""]', "dataset B1: path = ['a', '']"),
        ("datasets", "path", "7", "datasets[0].path = 7: Expected `str | array`, got `int`"),
        ("datasets", "budget_tokens", "-1", "dataset B1: budget_tokens = -1"),
        ("datasets", "budget_tokens", '"10M"', "datasets[0].budget_tokens = '10M': Expected `int`"),
        ("datasets", "turns", '"first"', "datasets[0].turns = 'first': Invalid enum value 'first'"),
        ("datasets", "budget", "1", "[datasets[0]]: Object contains unknown field `budget`"),
        ("gpu", "x", "1", "Object contains unknown field `gpu`"),
    ],
)
def test_a_bad_value_is_named_with_its_key(
    tmp_path: Path, table: str, key: str, value: str, words: str
) -> None:
    """The error begins with the file, then says the key and the value that stands there."""
    assert problem(write(tmp_path, with_key(table, key, value))).startswith(words)


@pytest.mark.parametrize("field", OWN_FIELDS)
def test_extra_may_not_hold_what_another_key_sets(tmp_path: Path, field: str) -> None:
    """`stream` would make every answer unreadable, `max_tokens` would undo the cap."""
    text = GOOD + f"\n[sampling.extra]\n{field} = 1\n"
    assert problem(write(tmp_path, text)).startswith(f"sampling.extra.{field} = 1: is set by")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Object missing required field `run`"),
        ("[run\n", "not a TOML file"),
        ("[run]\nname = 'a'\nname = 'b'", "not a TOML file"),
        (GOOD.replace('model = "moonshotai/kimi-k2.5"', ""), "[run]: Object missing required"),
        (GOOD.replace('path = "b1.jsonl"', ""), "[datasets[0]]: Object missing required field"),
        (GOOD[: GOOD.index("[[")], "Object missing required field `datasets`"),
        ("datasets = []\n" + GOOD[: GOOD.index("[[")], "no [[datasets]] table"),
        (GOOD + GOOD[GOOD.index("[[") :], "dataset names repeat: B1, B1"),
        (GOOD.replace("[[datasets]]", "[datasets]"), "[datasets]: Expected `array`, got `object`"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Missing and repeated tables and keys are named."""
    assert problem(write(tmp_path, text)).startswith(words)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Absent, a folder without one, below a file, or no text."""
    assert "no such file" in problem(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"run\.toml: no such file"):
        load(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "not a TOML file" in problem(tmp_path / "bytes.toml")
    assert "cannot be read" in problem(tmp_path / "bytes.toml" / "run.toml")


def test_an_unknown_dataset_is_named_with_the_known_ones(tmp_path: Path) -> None:
    """The names that there are help to find the right one."""
    config = load(write(tmp_path, GOOD))
    assert config.dataset("B1").name == "B1"
    with pytest.raises(ConfigError, match="no dataset is named 'B2'; the run has B1"):
        config.dataset("B2")
