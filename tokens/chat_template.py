"""A chat template from the Hub, rendered as transformers renders it.

In: the template's source, messages, tools. Out: text. The template is untrusted code: it runs
in jinja's sandbox. It has no clock: `strftime_now` knows the day it is given, and is undefined
without one, so that a template falls back on its own date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokens.errors import FolderError, Unrenderable

#: What a template's expressions raise on a conversation that it was not written for.
FAILURES = (TypeError, LookupError, AttributeError, ValueError, ArithmeticError)


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """`special`: the named tokens that a template may use, such as `bos_token`."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        self.special = dict(special)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise FolderError(f"chat template, line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        day: date | None = None,
        **variables: Any,
    ) -> str:
        """The conversation as text.

        Raises:
            Unrenderable: the template refuses the conversation, or fails on it.
        """
        if day:
            variables["strftime_now"] = day.strftime
        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, **self.special, **variables
            )
        except (jinja2.TemplateError, *FAILURES) as error:
            raise Unrenderable(f"the chat template refuses the conversation: {error}") from error


class _Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`, which marks answers in training templates."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja's own filter: no HTML escapes, non-ASCII characters kept."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
