"""Hugging Face folders against transformers: the same template gives the same ids."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import tokens

NAMES = ["qwen3", "deepseek_r1", "deepseek_v31", "llama3", "smollm2"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für einen Ort <b>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALLS = [
    {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
    }
]
CONVERSATIONS = {
    "one turn": [{"role": "user", "content": " Hi é e\u0301 <b> \n"}],
    "system": [{"role": "system", "content": "Short."}, {"role": "user", "content": "Why?"}],
    "turns": [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3\n\n"},
    ],
    "look-alike by half": [{"role": "user", "content": "<|im_end <think ｜> |>"}],
}


class Truth:
    """transformers' own rendering of a folder; its templates know today's date."""

    def __init__(self, folder: Path) -> None:
        transformers = pytest.importorskip("transformers")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def ids(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        return list(self.tokenizer.apply_chat_template(messages, return_dict=False, **options))


@pytest.fixture(params=NAMES)
def both(
    request: pytest.FixtureRequest,
    folder_of: Callable[[str], Path],
    renderer_of: Callable[[str], tokens.Renderer],
) -> tuple[tokens.Renderer, Truth]:
    """A renderer and its truth."""
    return renderer_of(request.param), Truth(folder_of(request.param))


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_prefix_is_the_template_with_a_generation_prompt(
    both: tuple[tokens.Renderer, Truth], name: str, thinking: bool
) -> None:
    """prefix equals apply_chat_template, thinking or not."""
    renderer, truth = both
    messages = CONVERSATIONS[name]
    wanted = truth.ids(
        messages,
        add_generation_prompt=True,
        enable_thinking=thinking,
        thinking=thinking,
    )
    prompt = tokens.Prompt(messages, thinking=thinking, day=date.today())
    assert renderer.prefix(prompt) == wanted


def test_tools_are_declared_as_the_template_has_it(
    renderer_of: Callable[[str], tokens.Renderer], folder_of: Callable[[str], Path]
) -> None:
    """A prefix with tools equals apply_chat_template with tools."""
    truth = Truth(folder_of("qwen3"))
    messages = CONVERSATIONS["one turn"]
    wanted = truth.ids(messages, tools=TOOLS, add_generation_prompt=True)
    assert renderer_of("qwen3").prefix(tokens.Prompt(messages, TOOLS)) == wanted


#: What each family's template has a place for in a last answer.
PLAIN, CALLING = tokens.Answer("Because 4 > 3."), tokens.Answer("", None, CALLS, "tool_calls")
THOUGHT = tokens.Answer("Because.", "Hm, why?")
BOTH = tokens.Answer("Let me see.", "Hm.", CALLS, "tool_calls")


@pytest.mark.parametrize(
    ("name", "answer", "thinking"),
    [
        ("smollm2", PLAIN, True),
        ("llama3", PLAIN, True),
        ("llama3", CALLING, True),
        ("qwen3", PLAIN, True),
        ("qwen3", THOUGHT, True),
        ("qwen3", CALLING, True),
        ("qwen3", BOTH, True),
        ("deepseek_v31", PLAIN, False),
    ],
)
def test_prefix_and_completion_are_the_template_over_the_whole(
    renderer_of: Callable[[str], tokens.Renderer],
    folder_of: Callable[[str], Path],
    name: str,
    answer: tokens.Answer,
    thinking: bool,
) -> None:
    """Up to its end token the whole conversation is prefix and completion."""
    renderer, truth = renderer_of(name), Truth(folder_of(name))
    question = {"role": "user", "content": "Why?"}
    last = {
        "role": "assistant",
        "content": answer.content,
        "reasoning_content": answer.reasoning,
        "tool_calls": [json.loads(json.dumps(call)) for call in answer.tool_calls],
    }
    for call in last["tool_calls"]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    whole = truth.ids([question, last])
    prefix = renderer.prefix(tokens.Prompt([question], thinking=thinking, day=date.today()))
    ids = prefix + renderer.completion(answer, thinking)
    assert ids == whole[: len(ids)]
    assert renderer.decode(whole[len(ids) :]).strip() == ""


@pytest.mark.parametrize(
    ("name", "reasoning", "content", "written"),
    [
        ("qwen3", "Hm.", "Yes.", "<think>\nHm.\n</think>\n\nYes."),
        ("qwen3", "\nHm.\n", "\n\nYes.", "<think>\nHm.\n</think>\n\nYes."),
        ("deepseek_r1", "Hm.", "Yes.", "Hm.\n</think>\n\nYes."),
        ("deepseek_r1", "Hm.\n", "\n\nYes.", "Hm.\n</think>\n\nYes."),
        ("deepseek_v31", "Hm.", "Yes.", "Hm.</think>Yes."),
    ],
)
def test_a_thought_is_spelt_as_the_model_writes_it(
    renderer_of: Callable[[str], tokens.Renderer],
    name: str,
    reasoning: str,
    content: str,
    written: str,
) -> None:
    """Line breaks that a server stripped are put back, those that it kept are kept."""
    renderer = renderer_of(name)
    ids = renderer.completion(tokens.Answer(content, reasoning))
    assert renderer.decode(ids[:-1]) == written


def test_an_answer_cut_off_within_its_thought_has_no_end(
    renderer_of: Callable[[str], tokens.Renderer],
) -> None:
    """Neither `</think>` nor an end token follows what was cut off."""
    renderer = renderer_of("deepseek_r1")
    assert renderer.decode(renderer.completion(tokens.Answer(None, "Hm", (), "length"))) == "Hm"


def test_tool_calls_stand_behind_content_where_the_template_has_no_place_for_both(
    renderer_of: Callable[[str], tokens.Renderer],
) -> None:
    """DeepSeek's template writes either; the model wrote content first, then its calls."""
    renderer = renderer_of("deepseek_r1")
    answer = tokens.Answer("Let me see.", None, CALLS, "tool_calls")
    ids = renderer.completion(answer)
    assert renderer.decode(ids) == (
        "\n</think>\n\nLet me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        'weather\n```json\n{"city": "Köln"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        "<｜end▁of▁sentence｜>"
    )


def test_reasoning_without_a_place_is_refused(
    renderer_of: Callable[[str], tokens.Renderer],
) -> None:
    """A family or a prompt that does not think takes no reasoning."""
    with pytest.raises(tokens.Unrenderable, match="has reasoning"):
        renderer_of("llama3").completion(THOUGHT)
    with pytest.raises(tokens.Unrenderable, match="has reasoning"):
        renderer_of("qwen3").completion(THOUGHT, thinking=False)


def test_a_template_states_the_day_it_is_given(
    renderer_of: Callable[[str], tokens.Renderer],
) -> None:
    """The date comes from the prompt, never from a clock."""
    renderer, messages = renderer_of("llama3"), CONVERSATIONS["one turn"]
    dated = renderer.decode(renderer.prefix(tokens.Prompt(messages, day=date(2026, 12, 1))))
    assert "Today is 01 Dec 2026" in dated
    assert "Today" not in renderer.decode(renderer.prefix(tokens.Prompt(messages)))


def test_what_a_template_refuses_is_unrenderable(
    renderer_of: Callable[[str], tokens.Renderer],
) -> None:
    """The template's own words are in the error."""
    with pytest.raises(tokens.Unrenderable, match="no such role: narrator"):
        renderer_of("llama3").count_prefix([{"role": "narrator", "content": "Once"}])


def test_an_image_is_unrenderable(renderer: tokens.Renderer) -> None:
    """Parts that are not text are refused; text parts are joined."""
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(tokens.Unrenderable, match="image_url"):
        renderer.count_prefix([{"role": "user", "content": [image]}])
    parts = [{"type": "text", "text": "Why?"}]
    assert renderer.count_prefix([{"role": "user", "content": parts}]) == renderer.count_prefix(
        [{"role": "user", "content": "Why?"}]
    )


def test_a_template_cannot_leave_its_sandbox(
    tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    """A template from the Hub is untrusted: it reaches no Python internals."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder_of("llama3") / name).read_bytes())
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(tokens.Unrenderable, match="unsafe"):
        tokens.load(tmp_path)
