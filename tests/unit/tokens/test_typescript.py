"""Tool schemas as Kimi-K2.5's template writes them."""

from typing import Any

import pytest

from tokens.errors import Unrenderable
from tokens.typescript import declare


def declared(parameters: Any, description: str = "") -> str:
    """The declaration of one function `f`, without what stands around it."""
    function = {"name": "f", "description": description, "parameters": parameters}
    text = declare([{"type": "function", "function": function}])
    start, end = "# Tools\n\n## functions\nnamespace functions {\n", "\n}\n"
    assert text.startswith(start) and text.endswith(end)
    return text.removeprefix(start).removesuffix(end)


def field(schema: Any) -> str:
    """How one required parameter `x` is declared."""
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    text = declared(parameters)
    return text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "  x: number"),
        ({"type": "string", "description": "one\n\ntwo"}, "  // one\n\n  // two\n  x: string"),
        (
            {"type": "integer", "minimum": 1, "maximum": 9},
            "  // maximum: 9, minimum: 1\n  x: number",
        ),
        ({"type": "string", "minimum": 1}, "  x: string"),
        ({"enum": ["a", 1, None, True]}, '  x: "a" | 1 | None | True'),
        ({"type": ["string", "null"]}, "  x: string | null"),
        ({"type": ["integer", "array", "object"]}, "  x: number | Array<any> | {}"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "  x: string | number"),
        ({"type": "array"}, "  x: Array<any>"),
        (
            {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
            "  // maxItems: 3\n  x: Array<number>",
        ),
        (
            {"type": "array", "items": {"type": "string", "description": "name"}},
            "  x: Array<\n    // name\n    string\n  >",
        ),
        ({"type": "object"}, "  x: {}"),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            "  x: {\n    [k: string]: number\n  }",
        ),
        (
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {"y": {"type": "null"}},
            },
            "  x: {\n    y?: null,\n    [k: string]: never\n  }",
        ),
        ({"type": "boolean", "default": True}, "  // Default: True\n  x: boolean"),
        ({"type": "string", "default": "é"}, '  // Default: "é"\n  x: string'),
        ({}, "  x: any"),
        (True, "  x: any"),
        (False, "  x: null"),
    ],
)
def test_a_schema_has_one_spelling(schema: Any, text: str) -> None:
    """Descriptions and constraints are comments, types are TypeScript's."""
    assert field(schema) == text


def test_required_parameters_come_first() -> None:
    """Within each group names are sorted; what is optional has a question mark."""
    kind = {"type": "string"}
    parameters = {
        "properties": {"d": kind, "a": kind, "c": kind, "b": kind},
        "required": ["d", "b"],
    }
    assert declared(parameters, "What it does.\nAnd how.") == (
        "// What it does.\n// And how.\n"
        "type f = (_: {\n  b: string,\n  d: string,\n  a?: string,\n  c?: string\n}) => any;"
    )


def test_definitions_are_interfaces() -> None:
    """What `$ref` names is declared before the function."""
    parameters = {
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/Place"}},
        "$defs": {
            "Place": {
                "type": "object",
                "description": "Where.",
                "properties": {"x": {"type": "number"}},
            }
        },
    }
    assert declared(parameters) == (
        "// Where.\ninterface Place {\n  x?: number\n}\ntype f = (_: {\n  to?: Place\n}) => any;"
    )


def test_a_schema_may_refer_to_itself() -> None:
    """The parameters become an interface of that name, its fields in the order of their names."""
    parameters = {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "age": {"type": "integer"}},
        "required": ["child"],
    }
    assert declared(parameters) == (
        "interface parameters {\n  age?: number,\n  child: parameters\n}\n"
        "type f = (_: parameters) => any;"
    )


@pytest.mark.parametrize(
    "schema", [{"description": "no type"}, {"$ref": "https://example.org/schema"}, {"type": 3}]
)
def test_a_schema_without_a_spelling_is_refused(schema: Any) -> None:
    """The count of a guessed declaration would be wrong, so there is none."""
    with pytest.raises(Unrenderable, match="a tool's schema"):
        field(schema)


def test_what_is_no_schema_is_refused_with_the_tool_that_has_it() -> None:
    """The tool is named."""
    with pytest.raises(Unrenderable, match="tool 'f': its parameters are no JSON Schema"):
        declared({"properties": ["x"]})


def test_other_tools_than_functions_are_left_out() -> None:
    """The template has no word for them."""
    assert declare([{"type": "web_search"}]) == ""
