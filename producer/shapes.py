"""A row of a dataset → the conversation to complete.

In: a decoded row and the dataset's options. Out: a `Conversation`, or `Unusable` with the
reason. Invariant: a pure function of row and options; it raises nothing else, whatever the
row holds.

Which column is the prompt, first that applies:

1. `template`: one user message, `{column}` replaced by that column's value;
2. `column`: a text, a list of texts (user turns) or a list of messages, also as JSON text;
3. the first of these that is there and not empty:
   `messages`, `conversations`, `conversation` (lists of messages, also as JSON text),
   `turns` (a list of texts, or of messages), `prompt` (a text or any list),
   `instruction` (followed by `input` where that is not empty), `question`, `problem`, `text`.

A system message is, in this order, the one among the messages, the row's column
`system_prompt` or `system` (not with a template, which may use them), the dataset's `system`.
The row's column `tools` is kept.

A list of texts has no answers in it, so its later turns only make sense after an answer: it
is a chain whatever `turns` says. A list of messages follows `turns`, see `turns.py`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fleet.errors import ConfigError
from fleet.records import Message
from fleet.run_config import Dataset
from producer.messages import Unusable, clean, from_json, is_message, kind_of, plain_json
from producer.turns import split_messages

MESSAGE_COLUMNS = ("messages", "conversations", "conversation", "turns")
TEXT_COLUMNS = ("prompt", "instruction", "question", "problem", "text")
SYSTEM_COLUMNS = ("system_prompt", "system")
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
COLUMNS_SHOWN = 20


class Conversation(NamedTuple):
    """A conversation that the target is to write."""

    #: For each answer: the messages that come before it and after the answer before.
    turns: list[list[Message]]
    tools: list[dict[str, Any]] | None


def check_options(dataset: Dataset) -> None:
    """Refuse options that no row can satisfy.

    Raises:
        ConfigError: the template names no column, or stands beside `column`.
    """
    if dataset.template is None:
        return
    if dataset.column is not None:
        raise ConfigError(f"dataset {dataset.name}: give `column` or `template`, not both")
    if not any(match[1] for match in PLACEHOLDER.finditer(dataset.template)):
        raise ConfigError(
            f"dataset {dataset.name}: the template names no column; write {{question}} where "
            "the text of the column `question` belongs"
        )


def conversation(row: Any, dataset: Dataset) -> Conversation:
    """The conversation in a row.

    Raises:
        Unusable: there is none.
    """
    if not isinstance(row, dict):
        raise Unusable("not an object", f"the row is {kind_of(row)}, expected an object")
    if dataset.template is not None:
        text = fill(dataset.template, row)
        turns = _user_turns([text], "the filled template")
    else:
        name = dataset.column if dataset.column is not None else _recognise(row)
        turns = _turns(row, name, dataset)
    first = turns[0]
    if first[0]["role"] != "system" and (system := _system(row, dataset)):
        first.insert(0, {"role": "system", "content": system})
    return Conversation(turns, _tools(row.get("tools")))


def fill(template: str, row: Mapping[str, Any]) -> str:
    """The template with its placeholders replaced."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        if match[1] not in row:
            raise Unusable("missing column", _columns(row, f"the template's column `{match[1]}`"))
        return _as_text(row[match[1]], match[1])

    return PLACEHOLDER.sub(value, template)


def _as_text(value: Any, name: str) -> str:
    if value is None:
        raise Unusable("empty prompt", f"the template's column `{name}` is null")
    if isinstance(value, str):
        return value
    plain_json(value, f"the template's column `{name}`")
    return json.dumps(value, ensure_ascii=False)


def _recognise(row: Mapping[str, Any]) -> str:
    present = [name for name in MESSAGE_COLUMNS + TEXT_COLUMNS if name in row]
    for name in present:
        if row[name] is not None and row[name] != "":
            return name
    if present:
        names = ", ".join(f"`{name}`" for name in present)
        raise Unusable("empty prompt", f"the prompt is empty: {names}")
    raise Unusable("no prompt column", _columns(row, "a column known to hold prompts"))


def _columns(row: Mapping[str, Any], what: str) -> str:
    names = [str(name) for name in list(row)[:COLUMNS_SHOWN]]
    listed = ", ".join(names) + (", …" if len(row) > COLUMNS_SHOWN else "") or "none"
    return f"{what} is missing; the row's columns: {listed}; set `column` or `template`"


def _turns(row: Mapping[str, Any], name: str, dataset: Dataset) -> list[list[Message]]:
    if name not in row:
        raise Unusable("missing column", _columns(row, f"the column `{name}`"))
    value = row[name]
    if name in MESSAGE_COLUMNS and dataset.column is None:
        value = from_json(value, f"`{name}`")
        if not isinstance(value, list):
            reason = f"`{name}` is {kind_of(value)}, expected a list of messages"
            raise Unusable("wrong type", reason)
    elif isinstance(value, str):
        value = _embedded(value) or value
    if isinstance(value, str):
        return _user_turns([_with_input(row, name, value)], f"`{name}`")
    if not isinstance(value, list):
        kind = "empty prompt" if value is None else "wrong type"
        raise Unusable(kind, f"`{name}` is {kind_of(value)}, expected text or a list")
    if not value:
        raise Unusable("empty prompt", f"`{name}` is an empty list")
    if all(isinstance(item, str) for item in value):
        if name in ("messages", "conversations", "conversation"):
            reason = f"`{name}` is a list of texts, expected messages with `role` and `content`"
            raise Unusable("wrong type", reason)
        return _user_turns(value, f"`{name}`")
    return split_messages(value, f"`{name}`", dataset.turns)


def _embedded(text: str) -> list[Any] | None:
    """The messages that a text column holds as JSON, if it does."""
    if not text.lstrip().startswith("["):
        return None
    try:
        value = from_json(text, "")
    except Unusable:
        return None
    return value if isinstance(value, list) and value and all(map(is_message, value)) else None


def _with_input(row: Mapping[str, Any], name: str, text: str) -> str:
    extra = row.get("input") if name == "instruction" else None
    if extra is None:
        return text
    if not isinstance(extra, str):
        raise Unusable("wrong type", f"`input` is {kind_of(extra)}, expected text")
    return f"{text}\n\n{extra}" if extra.strip() else text


def _user_turns(texts: list[str], where: str) -> list[list[Message]]:
    turns: list[list[Message]] = []
    for number, text in enumerate(texts, start=1):
        place = where if len(texts) == 1 else f"turn {number} of {where}"
        if not text.strip():
            raise Unusable("empty prompt", f"the prompt is empty: {place}")
        turns.append([{"role": "user", "content": clean(text, place)}])
    return turns


def _system(row: Mapping[str, Any], dataset: Dataset) -> str | None:
    for name in () if dataset.template is not None else SYSTEM_COLUMNS:
        value = row.get(name)
        if value is None or name == dataset.column:
            continue
        if not isinstance(value, str):
            raise Unusable("wrong type", f"`{name}` is {kind_of(value)}, expected text")
        if value.strip():
            return clean(value, f"`{name}`")
    return dataset.system


def _tools(value: Any) -> list[dict[str, Any]] | None:
    value = from_json(value, "`tools`")
    if not value:
        return None
    if not isinstance(value, list):
        raise Unusable("wrong type", f"`tools` is {kind_of(value)}, expected a list")
    for number, tool in enumerate(value, start=1):
        if not isinstance(tool, dict):
            reason = f"tool {number} of `tools` is {kind_of(tool)}, expected an object"
            raise Unusable("wrong type", reason)
    plain_json(value, "`tools`")
    return [_tool(tool) for tool in value]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A bare function definition gets the wrapper that the API expects."""
    bare = "name" in tool and "function" not in tool and "type" not in tool
    return {"type": "function", "function": tool} if bare else tool
