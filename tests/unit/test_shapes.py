"""Rows → conversations: the shapes that datasets have, and the options that override them."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.errors import ConfigError
from fleet.run_config import Dataset
from producer.messages import Unusable
from producer.shapes import check_options, conversation

Turns = list[list[dict[str, Any]]]


def dataset(**options: Any) -> Dataset:
    return Dataset(name="D", path="d.jsonl", **options)


def turns(row: Any, **options: Any) -> Turns:
    return conversation(row, dataset(**options)).turns


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


CHAT = [user("x"), assistant("old"), user("y"), assistant("older")]
SHAREGPT = [{"from": "human", "value": "x"}, {"from": "gpt", "value": "old"}]

SHAPES: dict[str, tuple[dict[str, Any], Turns]] = {
    "OpenAI messages": ({"messages": CHAT}, [CHAT[:3]]),
    "messages as JSON text": ({"messages": json.dumps(CHAT)}, [CHAT[:3]]),
    "ShareGPT": ({"conversations": [*SHAREGPT, SHAREGPT[0]]}, [[*CHAT[:2], user("x")]]),
    "ShareGPT with roles": ({"conversations": CHAT}, [CHAT[:3]]),
    "conversation": ({"conversation": CHAT}, [CHAT[:3]]),
    "a text prompt": ({"prompt": "x", "chosen": "y"}, [[user("x")]]),
    "a prompt of messages": ({"prompt": CHAT[:1]}, [CHAT[:1]]),
    "a prompt of messages as text": ({"prompt": json.dumps(CHAT[:1])}, [CHAT[:1]]),
    "a prompt that is JSON": ({"prompt": "[1, 2]"}, [[user("[1, 2]")]]),
    "instruction": ({"instruction": "x", "input": ""}, [[user("x")]]),
    "instruction with null input": ({"instruction": "x", "input": None}, [[user("x")]]),
    "instruction with input": ({"instruction": "x", "input": "y"}, [[user("x\n\ny")]]),
    "question": ({"question": "x", "answer": "y"}, [[user("x")]]),
    "problem": ({"problem": "x", "solution": "y"}, [[user("x")]]),
    "turns": ({"turns": ["x", "y"]}, [[user("x")], [user("y")]]),
    "turns as JSON text": ({"turns": '["x", "y"]'}, [[user("x")], [user("y")]]),
    "turns of messages": ({"turns": CHAT}, [CHAT[:3]]),
    "text": ({"text": "x"}, [[user("x")]]),
    "messages before prompt": ({"prompt": "p", "messages": CHAT[:1]}, [CHAT[:1]]),
    "prompt before text": ({"text": "t", "prompt": "p"}, [[user("p")]]),
    "null passed over": ({"messages": None, "prompt": "", "text": "t"}, [[user("t")]]),
    "content in parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]},
        [[user("ab")]],
    ),
    "developer is system": (
        {"messages": [{"role": "developer", "content": "s"}, user("x")]},
        [[system("s"), user("x")]],
    ),
    "roles in other case": ({"messages": [{"role": "User", "content": "x"}]}, [[user("x")]]),
    "an empty system message": ({"messages": [system(""), user("x")]}, [[user("x")]]),
    "an answer before the question": (
        {"messages": [assistant("hello"), user("x")]},
        [[assistant("hello"), user("x")]],
    ),
    "users that follow each other": (
        {"messages": [user("x"), user("y")]},
        [[user("x"), user("y")]],
    ),
    "other keys dropped": ({"messages": [{**user("x"), "id": 5, "weight": None}]}, [[user("x")]]),
    "a system prompt column": (
        {"system_prompt": "s", "question": "x"},
        [[system("s"), user("x")]],
    ),
    "a system column beside ShareGPT": (
        {"system": "s", "conversations": SHAREGPT},
        [[system("s"), user("x")]],
    ),
    "a broken last answer": ({"messages": [user("x"), {"role": "assistant"}]}, [[user("x")]]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_known_shape_is_recognised(shape: str) -> None:
    """No option is needed, and answers behind the last user turn are dropped."""
    row, expected = SHAPES[shape]
    assert turns(row) == expected


def test_all_turns_are_written_anew_in_order() -> None:
    """Each turn holds only what comes after the answer before it."""
    chat = [system("s"), *CHAT, user("z")]
    assert turns({"messages": chat}, turns="all") == [
        [system("s"), user("x")],
        [user("y")],
        [user("z")],
    ]


def test_user_messages_that_follow_each_other_are_one_turn() -> None:
    """With `turns = "all"` too: there was no answer between them."""
    chat = [user("a"), user("b"), assistant("1"), assistant("2"), user("c")]
    assert turns({"messages": chat}, turns="all") == [[user("a"), user("b")], [user("c")]]


def test_an_answer_before_the_first_question_is_context() -> None:
    """There is nothing that could be asked to have it written anew."""
    chat = [assistant("hello"), user("x"), assistant("old"), system("s"), assistant("?"), user("y")]
    assert turns({"messages": chat}, turns="all") == [
        [assistant("hello"), user("x")],
        [system("s"), user("y")],
    ]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "r", "tool_call_id": "c1"}


def test_tool_calls_and_their_results_are_kept() -> None:
    """A prompt may end with a tool's result; content may be null beside calls."""
    chat = [user("x"), CALLING, RESULT, assistant("old")]
    assert turns({"messages": chat}) == [chat[:3]]


def test_tool_call_arguments_become_text() -> None:
    """Datasets have them as objects, the API wants JSON text."""
    call = {"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}
    chat = [user("x"), {"role": "assistant", "tool_calls": json.dumps([call])}, RESULT]
    assert turns({"messages": chat})[0][1]["tool_calls"] == [CALL]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"default": None}}}


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [TOOL["function"]]])
def test_tools_are_kept(tools: Any) -> None:
    """As a list, as JSON text, or as bare functions, which get the API's wrapper."""
    assert conversation({"prompt": "x", "tools": tools}, dataset()).tools == [TOOL]


@pytest.mark.parametrize("tools", [None, [], "", "[]"])
def test_no_tools_are_none(tools: Any) -> None:
    """An empty list asks for nothing, and is not sent."""
    assert conversation({"prompt": "x", "tools": tools}, dataset()).tools is None


def test_column_overrides_the_shape() -> None:
    """It may hold a text, a list of texts, or messages."""
    assert turns({"q": "x", "prompt": "no"}, column="q") == [[user("x")]]
    assert turns({"q": ["x", "y"]}, column="q") == [[user("x")], [user("y")]]
    assert turns({"q": CHAT}, column="q") == [CHAT[:3]]
    assert turns({"q": json.dumps(CHAT)}, column="q") == [CHAT[:3]]
    assert turns({"messages": "hello"}, column="messages") == [[user("hello")]]


def test_a_template_is_filled_from_the_columns() -> None:
    """Numbers and lists as JSON; doubled braces are braces, and single ones too."""
    row = {"q": "Why?", "n": 3, "options": ["a", "b"], "prompt": "no"}
    template = "{q} Choose {n} of {options} as {{json}} {"
    assert turns(row, template=template) == [[user('Why? Choose 3 of ["a", "b"] as {json} {')]]


def test_a_value_is_not_filled_in_turn() -> None:
    """Braces in the data are data."""
    assert turns({"q": "{n} {{", "n": 3}, template="{q}") == [[user("{n} {{")]]


def test_the_datasets_system_message_is_used_where_the_row_has_none() -> None:
    """First the messages' own, then the row's column, then the dataset's."""
    assert turns({"prompt": "x"}, system="d") == [[system("d"), user("x")]]
    assert turns({"prompt": "x", "system": "r"}, system="d") == [[system("r"), user("x")]]
    own = [system("m"), user("x")]
    assert turns({"messages": own, "system": "r"}, system="d") == [own]
    assert turns({"turns": ["x", "y"]}, system="d")[1] == [user("y")]


def test_a_template_without_a_column_is_refused() -> None:
    """Every row would give the same prompt."""
    with pytest.raises(ConfigError, match="the template names no column"):
        check_options(dataset(template="Tell a joke {{}}"))


def test_column_and_template_exclude_each_other() -> None:
    """Only one of them can say what the prompt is."""
    with pytest.raises(ConfigError, match="`column` or `template`, not both"):
        check_options(dataset(template="{a}", column="a"))


TEXT = st.text(st.characters(), max_size=8)  # half surrogate pairs and NUL too
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUE = st.recursive(LEAF, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3))
ROLE = st.sampled_from(["system", "user", "assistant", "tool", "human", "gpt", "bard"]) | VALUE
CALLS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.just("c1") | VALUE,
            "function": st.fixed_dictionaries({"name": TEXT, "arguments": VALUE}) | VALUE,
        },
    )
)
PART = st.fixed_dictionaries({"type": st.just("text") | VALUE, "text": VALUE})
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": ROLE,
        "from": ROLE,
        "content": TEXT | st.lists(PART | VALUE, max_size=2) | VALUE,
        "value": VALUE,
        "tool_calls": CALLS | VALUE,
        "tool_call_id": st.just("c1") | VALUE,
        "name": VALUE,
    },
)
COLUMN = st.lists(MESSAGE | VALUE, max_size=4) | VALUE
NAMES = ("messages", "conversations", "turns", "prompt", "instruction", "input", "text")
ROW = st.fixed_dictionaries({}, optional=dict.fromkeys((*NAMES, "tools", "system"), COLUMN)) | VALUE
OPTIONS = st.sampled_from(
    [{}, {"turns": "all"}, {"column": "prompt"}, {"template": "{prompt}"}, {"system": "s"}]
)


def assert_text(*values: Any) -> None:
    assert all(isinstance(value, str) and value for value in values)


@settings(max_examples=300, deadline=None)
@given(ROW, OPTIONS)
@example({"messages": [{"role": "user", "content": "x"}], "tools": [{"a": 10**5000}]}, {})
def test_any_value_is_a_prompt_or_is_refused_with_a_reason(row: Any, options: Any) -> None:
    """Nothing else is raised, and a prompt is JSON whose every turn asks for an answer."""
    try:
        found = conversation(row, dataset(**options))
    except Unusable as unusable:
        kind, reason = unusable.args
        assert_text(kind, reason)
        return
    json.dumps(found.tools, allow_nan=False).encode()
    for messages in found.turns:
        assert messages[-1]["role"] in ("user", "tool")
        assert any(message["role"] in ("user", "tool") for message in messages)
        json.dumps(messages, allow_nan=False, ensure_ascii=False).encode()
