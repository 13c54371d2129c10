"""A local folder of tokenizer files, read once: what a family looks at to recognise itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokens.errors import FolderError


@dataclass(frozen=True)
class Folder:
    """The files of a model folder that concern its tokens."""

    path: Path

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file's object; empty when the file is absent.

        Raises:
            FolderError: the file is not a JSON object.
        """
        if not self.has(name):
            return {}
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FolderError(
                f"{self.path / name} is not JSON ({error}): fetch it again"
            ) from error
        if not isinstance(value, dict):
            raise FolderError(f"{self.path / name} is no JSON object: fetch it again")
        return value

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.json("config.json")

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        return self.json("tokenizer_config.json")

    @cached_property
    def tokenizer(self) -> dict[str, Any]:
        """`tokenizer.json`, the definition of a fast tokenizer."""
        return self.json("tokenizer.json")

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type") or "")

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """Spelling and id of the tokens that are no plain text's."""
        return {token["content"]: token["id"] for token in self._added}

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """The added tokens that engines leave out of an answer's text."""
        return frozenset(token["id"] for token in self._added if token["special"])

    @cached_property
    def _added(self) -> list[dict[str, Any]]:
        if self.has("tokenizer.json"):
            return list(self.tokenizer["added_tokens"])
        decoder = self.tokenizer_config.get("added_tokens_decoder") or {}
        return [{**token, "id": int(number)} for number, token in decoder.items()]

    @cached_property
    def chat_template(self) -> str | None:
        """The template's source, from its own file or the tokenizer's configuration."""
        if self.has("chat_template.jinja"):
            return (self.path / "chat_template.jinja").read_text(encoding="utf-8")
        template = self.tokenizer_config.get("chat_template")
        if isinstance(template, list):  # several, by name
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        return template if isinstance(template, str) else None
