"""Kimi-K2.5: ids, template and history rules, as the public template and recordings have them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import tokens

Recorded = Callable[[str], tuple[dict[str, Any], dict[str, Any]]]

#: Billed counts of the recorded exchanges: prompt, completion, and billed minus found.
EXCHANGES = {
    "simple_0": (21, 202, -1),  # Inceptron leaves the end token out
    "simple_streaming_0": (21, 173, -2),  # ModelRun
    "tool_0": (69, 66, 0),
    "tool_streaming_0": (69, 87, 0),
    "tool_1": (108, 67, 0),
    "multi_tool_0": (129, 86, 0),
    "multi_tool_streaming_0": (125, 97, 0),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_recorded_exchanges_count_as_they_were_billed(
    kimi: tokens.Renderer, recorded: Recorded, name: str
) -> None:
    """Prompts count exactly; completions too, but for what two providers are known to leave out."""
    request, reply = recorded(name)
    prompt = tokens.Prompt(request["messages"], request.get("tools"))
    counts = tokens.verify(kimi, prompt, reply).counts
    assert (counts.prompt_billed, counts.completion_billed) == EXCHANGES[name][:2]
    assert counts.prompt_difference == 0
    assert counts.completion_difference == EXCHANGES[name][2]
    assert kimi.count_prefix(prompt.messages, prompt.tools) == counts.prompt_billed


def test_special_tokens_have_the_ids_of_the_model(kimi: tokens.Renderer) -> None:
    """The ids are those of the model's configuration; <|im_end|> is not the 163533 of a copy."""
    assert kimi.end_id == 163586
    assert kimi.decode(range(163584, 163589)) == "[BOS][EOS]<|im_end|><|im_user|><|im_assistant|>"
    assert kimi.decode([163606, 163607, 163589, 163839]) == (
        "<think></think><|reserved_token_163589|>[PAD]"
    )
    assert kimi.size == 163840


HI = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "id": "functions.add:0",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a":2}'},
}
CALLED = {"role": "assistant", "content": "", "reasoning_content": "Sum.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "functions.add:0", "content": "4"}
ANSWER = {"role": "assistant", "content": "It is 4.", "reasoning_content": "Easy."}
OPEN = "<|im_assistant|>assistant<|im_middle|>"
CALLS_TEXT = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": 2}<|tool_call_end|><|tool_calls_section_end|>'
)
RENDERINGS = {
    "no default system prompt": (
        [HI],
        True,
        f"<|im_user|>user<|im_middle|>Hi<|im_end|>{OPEN}<think>",
    ),
    "thinking off": ([HI], False, f"<|im_user|>user<|im_middle|>Hi<|im_end|>{OPEN}<think></think>"),
    "system and name": (
        [SYSTEM, {**HI, "name": "Ann"}],
        True,
        "<|im_system|>system<|im_middle|>Be brief.<|im_end|>"
        f"<|im_user|>Ann<|im_middle|>Hi<|im_end|>{OPEN}<think>",
    ),
    "open tool loop keeps its reasoning": (
        [HI, CALLED, RESULT],
        True,
        f"<|im_user|>user<|im_middle|>Hi<|im_end|>{OPEN}<think>Sum.</think>{CALLS_TEXT}<|im_end|>"
        f"<|im_system|>tool<|im_middle|>## Return of functions.add:0\n4<|im_end|>{OPEN}<think>",
    ),
    "answered turns lose it": (
        [HI, CALLED, RESULT, ANSWER, HI],
        True,
        f"<|im_user|>user<|im_middle|>Hi<|im_end|>{OPEN}<think></think>{CALLS_TEXT}<|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.add:0\n4<|im_end|>"
        f"{OPEN}<think></think>It is 4.<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>"
        f"{OPEN}<think>",
    ),
}


@pytest.mark.parametrize("name", RENDERINGS)
def test_prompts_render_as_the_template_has_them(kimi: tokens.Renderer, name: str) -> None:
    """No line breaks, no BOS; arguments of past calls are written anew, with spaces."""
    messages, thinking, text = RENDERINGS[name]
    assert kimi.decode(kimi.prefix(tokens.Prompt(messages, thinking=thinking))) == text


@pytest.mark.parametrize(
    ("answer", "thinking", "text"),
    [
        (tokens.Answer(" Oi!", " Hm."), True, " Hm.</think> Oi!<|im_end|>"),
        (tokens.Answer(" Oi!"), False, " Oi!<|im_end|>"),
        (tokens.Answer(None, " Hm", (), "length"), True, " Hm"),
        (tokens.Answer(" Oi", " Hm.", (), "length"), True, " Hm.</think> Oi"),
        (
            tokens.Answer(None, "Sum.", [CALL], "tool_calls"),
            True,
            "Sum.</think>" + CALLS_TEXT.replace(" 2", "2") + "<|im_end|>",
        ),
    ],
)
def test_answers_are_spelt_as_the_model_writes_them(
    kimi: tokens.Renderer, answer: tokens.Answer, thinking: bool, text: str
) -> None:
    """Nothing is trimmed; a call's arguments stay as they were; what was cut off has no end."""
    ids = kimi.completion(answer, thinking)
    assert kimi.decode(ids) == text
    assert (kimi.end_id in ids) == text.endswith("<|im_end|>")


def test_reasoning_without_thinking_is_refused(kimi: tokens.Renderer) -> None:
    """With thinking off, the prompt has closed the thought already."""
    with pytest.raises(tokens.Unrenderable, match="thinking was off"):
        kimi.completion(tokens.Answer("Oi", "Hm"), thinking=False)


def test_prefix_and_completion_are_an_open_tool_loop(kimi: tokens.Renderer) -> None:
    """A call as the model wrote it is the history of the next prompt, token for token."""
    spaced = {**CALL, "function": {**CALL["function"], "arguments": '{"a": 2}'}}  # type: ignore[dict-item]
    first = kimi.prefix(tokens.Prompt([HI])) + kimi.completion(
        tokens.Answer("", "Sum.", [spaced], "tool_calls")
    )
    second = kimi.prefix(tokens.Prompt([HI, CALLED, RESULT]))
    assert second[: len(first)] == first


def test_tools_are_declared_first_in_typescript(kimi: tokens.Renderer) -> None:
    """The declaration stands before the system message, as a message of its own."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    text = kimi.decode(kimi.prefix(tokens.Prompt([SYSTEM, HI], [tool])))
    assert text.startswith(
        "<|im_system|>tool_declare<|im_middle|># Tools\n\n## functions\nnamespace functions {\n"
        "type f = (_: {}) => any;\n}\n<|im_end|><|im_system|>system<|im_middle|>Be brief."
    )


def test_arguments_that_are_no_json_stay_as_they_are(kimi: tokens.Renderer) -> None:
    """A call that a model got wrong is history as well."""
    wrong = {**CALL, "function": {"name": "add", "arguments": "{a: 2"}}
    text = kimi.decode(kimi.prefix(tokens.Prompt([HI, {**CALLED, "tool_calls": [wrong]}, RESULT])))
    assert "<|tool_call_argument_begin|>{a: 2<|tool_call_end|>" in text


def test_tools_of_any_key_order_declare_the_same() -> None:
    """The template sorts a schema's keys, so their order in a request counts for nothing."""
    properties = {"b": {"type": "string"}, "a": {"type": "integer", "description": "first"}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    backwards = json.loads(json.dumps(function), object_pairs_hook=lambda p: dict(reversed(p)))
    declared = [
        tokens.typescript.declare([{"type": "function", "function": f}])  # type: ignore[attr-defined]
        for f in (function, backwards)
    ]
    assert declared[0] == declared[1]


def test_a_server_s_own_call_ids_are_not_what_the_model_wrote(kimi: tokens.Renderer) -> None:
    """The model names a call by its function and its place; a server may answer otherwise."""
    renamed = tokens.Answer(None, "Sum.", [{**CALL, "id": "call_9f2c"}], "tool_calls")
    as_written = tokens.Answer(None, "Sum.", [CALL], "tool_calls")
    assert kimi.completion(renamed) == kimi.completion(as_written)
