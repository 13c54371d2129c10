"""Tool definitions as TypeScript types: how Kimi-K2.5's chat template declares tools.

In: tools in OpenAI's shape, their parameters as JSON Schema. Out: one text. Keys of a schema
count in sorted order, required parameters come before optional ones. Schemas that the format
has no word for are refused, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokens.errors import Unrenderable

Schema = Mapping[str, Any]

STEP = "  "
#: Constraints that are written beside the description, by type.
CONSTRAINTS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
#: The words of a `type` that is a list.
UNION = {"integer": "number", "object": "{}", "array": "Array<any>"}
SELF = "parameters"


def declare(tools: Sequence[Mapping[str, Any]]) -> str:
    """The declaration of all tools; empty when none is a function.

    Raises:
        Unrenderable: a schema that has no TypeScript in this format.
    """
    functions = [tool["function"] for tool in tools if tool.get("type") == "function"]
    if not functions:
        return ""
    body = "\n".join(_function(function) for function in functions)
    return f"# Tools\n\n## functions\nnamespace functions {{\n{body}\n}}\n"


def _function(function: Mapping[str, Any]) -> str:
    root = function.get("parameters") or {}
    try:
        parts = [
            *_interfaces(root),
            _comment(function.get("description") or "", ""),
            f"type {function['name']} = (_: {_root(root)}) => any;",
        ]
    except (KeyError, TypeError, AttributeError) as error:
        name = function.get("name")
        raise Unrenderable(f"tool {name!r}: its parameters are no JSON Schema ({error})") from error
    return "\n".join(part for part in parts if part)


def _root(root: Schema) -> str:
    return SELF if _refers_to_itself(root) else _object(root, "")


def _interfaces(root: Schema) -> list[str]:
    """The types that the parameters refer to by name."""
    found = []
    if _refers_to_itself(root):
        fields = ",\n".join(_fields(root, "", sorted(root.get("properties", {}))))
        found.append(f"interface {SELF} {{\n{fields}\n}}")
    for name, schema in sorted(_definitions(root).items()):
        comment = _comment(schema.get("description", ""), "")
        found.append(f"{comment}\n" * bool(comment) + f"interface {name} {_type(schema, '')}")
    return found


def _definitions(schema: Any) -> dict[str, Schema]:
    """Every `$defs` at or below a schema."""
    found: dict[str, Schema] = {}
    for part in _parts(schema):
        found.update(part.get("$defs") or {})
    return found


def _refers_to_itself(schema: Any) -> bool:
    return any(part.get("$ref") == "#" for part in _parts(schema))


def _parts(value: Any) -> list[Schema]:
    """All objects at or below a value."""
    if isinstance(value, Mapping):
        return [value, *(part for child in value.values() for part in _parts(child))]
    if isinstance(value, list):
        return [part for child in value for part in _parts(child)]
    return []


def _type(schema: Any, indent: str) -> str:
    if isinstance(schema, bool) or schema == {}:
        return "null" if schema is False else "any"
    if "$ref" in schema:
        return _reference(schema["$ref"])
    if "anyOf" in schema:
        return " | ".join(_type(choice, indent) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f'"{e}"' if isinstance(e, str) else str(e) for e in schema["enum"])
    return _typed(schema, indent)


def _typed(schema: Schema, indent: str) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(UNION.get(name, str(name)) for name in kind)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return _array(schema, indent)
    if not isinstance(kind, str):
        raise Unrenderable(f"a tool's schema without a type: {json.dumps(schema)[:200]}")
    return "number" if kind == "integer" else kind


def _reference(reference: str) -> str:
    if reference == "#":
        return SELF
    if not reference.startswith("#/$defs/"):
        raise Unrenderable(f"a tool's schema refers to {reference!r}: only '#/$defs/…' can be")
    return reference.rsplit("/", 1)[-1]


def _array(schema: Schema, indent: str) -> str:
    items = schema.get("items")
    if not items:
        return "Array<any>"
    inner = indent + STEP
    comments = _comments(items, inner)
    if not comments:
        return f"Array<{_type(items, indent)}>"
    return f"Array<\n{comments}{inner}{_type(items, inner)}\n{indent}>"


def _object(schema: Schema, indent: str) -> str:
    required = set(schema.get("required") or ())
    names = sorted(schema.get("properties", {}), key=lambda name: (name not in required, name))
    fields = _fields(schema, indent, names)
    extra = schema.get("additionalProperties")
    if extra is not None:
        kind = "never" if extra is False else _type(extra, indent + STEP)
        fields.append(f"{indent}{STEP}[k: string]: {kind}")
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"


def _fields(schema: Schema, indent: str, names: Sequence[str]) -> list[str]:
    properties, required = schema.get("properties", {}), schema.get("required") or ()
    return [_field(name, properties[name], name in required, indent + STEP) for name in names]


def _field(name: str, schema: Any, required: bool, indent: str) -> str:
    comments = _comments(schema, indent)
    default = schema.get("default") if isinstance(schema, Mapping) else None
    if default is not None:
        number = isinstance(default, int | float)
        spelt = repr(default) if number else json.dumps(default, ensure_ascii=False)
        comments += f"{indent}// Default: {spelt}\n"
    return f"{comments}{indent}{name}{'' if required else '?'}: {_type(schema, indent)}"


def _comments(schema: Any, indent: str) -> str:
    """The description and the constraints, a line each."""
    if not isinstance(schema, Mapping):
        return ""
    plain = isinstance(schema.get("type"), str) and not schema.keys() & {"$ref", "anyOf", "enum"}
    allowed = CONSTRAINTS.get(schema["type"], ()) if plain else ()
    constraints = ", ".join(f"{name}: {schema[name]}" for name in allowed if name in schema)
    lines = [
        _comment(schema.get("description", ""), indent),
        f"{indent}// {constraints}" if constraints else "",
    ]
    return "".join(f"{line}\n" for line in lines if line)


def _comment(text: str, indent: str) -> str:
    if not text:
        return ""
    return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))
