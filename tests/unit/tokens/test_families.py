"""Which family a folder is of, and what is said of a folder that no family can load."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tokens


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("qwen3", "qwen3"),
        ("deepseek_r1", "deepseek"),
        ("llama3", "plain"),
        ("smollm2", "plain"),
        ("kimi", "kimi"),
    ],
)
def test_a_folder_says_its_family(
    renderer_of: Callable[[str], tokens.Renderer], name: str, family: str
) -> None:
    """load recognises a folder by its files alone."""
    assert renderer_of(name).family == family


def test_a_family_may_be_named(folder_of: Callable[[str], Path]) -> None:
    """A named family is used though another would be recognised."""
    assert tokens.load(folder_of("qwen3"), "plain").family == "plain"


def test_every_module_of_the_folder_is_a_family() -> None:
    """A family is one file: the registry has every module of tokens/families."""
    files = {path.stem for path in Path(tokens.families.__path__[0]).glob("*.py")}  # type: ignore[attr-defined]
    assert set(tokens.names()) == files - {"__init__"}


def test_an_unknown_name_lists_the_families(folder_of: Callable[[str], Path]) -> None:
    """A misspelt family is answered with those there are."""
    with pytest.raises(tokens.FolderError, match=r"no family 'quen'.*deepseek, kimi, plain, qwen3"):
        tokens.load(folder_of("qwen3"), "quen")


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(tokens.FolderError, match="nowhere is no folder"):
        tokens.load(tmp_path / "nowhere")


def test_an_unknown_folder_says_what_was_found(tmp_path: Path) -> None:
    """The model type and the files are in the error."""
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(tokens.FolderError, match=r"'mamba'; found config\.json"):
        tokens.load(tmp_path)


def test_a_folder_without_a_template_is_refused(
    tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    """A base model's tokenizer has no chat template to render with."""
    (tmp_path / "tokenizer.json").write_bytes((folder_of("llama3") / "tokenizer.json").read_bytes())
    with pytest.raises(tokens.FolderError, match=r"found tokenizer\.json\)\. A folder needs"):
        tokens.load(tmp_path)
    with pytest.raises(tokens.FolderError, match="has no chat template"):
        tokens.load(tmp_path, "plain")


def test_a_template_in_the_configuration_counts(
    tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    """Older folders keep the template in tokenizer_config.json, alone or by name."""
    source = folder_of("llama3")
    (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    config = json.loads((source / "tokenizer_config.json").read_bytes())
    template = (source / "chat_template.jinja").read_text()
    messages = [{"role": "user", "content": "Why?"}]
    for form in (template, [{"name": "default", "template": template}]):
        text = json.dumps(config | {"chat_template": form})
        (tmp_path / "tokenizer_config.json").write_text(text)
        assert tokens.load(tmp_path).count_prefix(messages) == tokens.load(source).count_prefix(
            messages
        )


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """A file that is no JSON is named, with what to do."""
    (tmp_path / "config.json").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(tokens.FolderError, match=r"config\.json is not JSON .*fetch it again"):
        tokens.load(tmp_path)


def test_a_pointer_is_no_vocabulary(tmp_path: Path, folder_of: Callable[[str], Path]) -> None:
    """A Git LFS pointer in place of tiktoken.model is called one."""
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder_of("kimi") / name).read_bytes())
    with pytest.raises(tokens.FolderError, match=r"has no tiktoken\.model"):
        tokens.load(tmp_path)
    (tmp_path / "tiktoken.model").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(tokens.FolderError, match=r"tiktoken\.model, line 1: .*Git LFS pointer"):
        tokens.load(tmp_path)


def test_another_chat_format_of_the_same_vocabulary_is_refused(
    tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    """Kimi-K3 has Kimi-K2.5's vocabulary and another template: it is not rendered as K2.5."""
    source = folder_of("kimi")
    (tmp_path / "tiktoken.model").symlink_to(source / "tiktoken.model")
    text = (source / "tokenizer_config.json").read_text().replace("<|im_end|>", "<|end_of_msg|>")
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(tokens.FolderError, match=r"names no <\|im_end\|>: this is another chat"):
        tokens.load(tmp_path)
