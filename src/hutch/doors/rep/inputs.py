"""The inputs of a run, checked against what the flow says of them, in either form.

`inputs_schema` is a JSON Schema of the inputs as a whole, or has a type for each by name, as the public
compiler writes it: `{"ids": {"type": "list<string>"}}`. There every input is wanted, unless it says
`"required": false` or its type ends with a question mark; others may be given as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hutch.doors.rep.problems import Problem, at, kind_of

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow

_JSON_TYPES = {
    "string": ("string", "str", "text", "date", "time", "datetime", "timestamp", "uuid", "uri", "url"),
    "integer": ("int", "integer", "long"),
    "number": ("number", "float", "double", "decimal"),
    "boolean": ("bool", "boolean"),
    "object": ("object", "map", "dict", "record"),
    "array": ("list", "array"),
    "null": ("null",),
}
_SCALARS: dict[str, dict[str, Any]] = {
    **{name: {"type": kind} for kind, names in _JSON_TYPES.items() for name in names},
    "any": {},
    "json": {},
}
_GENERIC = re.compile(r"(?P<outer>\w+)\s*(?:<(?P<angle>.*)>|\[(?P<square>.*)\])", re.S)
_LISTS = ("list", "array", "set", "sequence")
_MAPS = ("map", "dict", "object", "record")
_DEEPEST = 20


def check(flow: Flow, inputs: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the inputs of a run; paths begin with `inputs`."""
    if not isinstance(inputs, dict):
        return [Problem("inputs", f"expected an object, got {kind_of(inputs)}")]
    schema = as_json_schema(flow.inputs_schema)
    if not schema:
        return []
    from hutch.doors.rep.schema import InvalidSchema
    from hutch.doors.rep.schema import check as against

    try:
        return against(schema, inputs, ("inputs",), foreign=True)
    except InvalidSchema as error:  # of a flow that was not read by `flow.read`
        return [Problem("inputs_schema", f"expected a JSON Schema: {error}")]


def as_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Either form as a JSON Schema. Raises UnknownType."""
    if not schema or is_json_schema(schema):
        return schema
    properties = {name: _schema_of(each) for name, each in schema.items()}
    wanted = [name for name, each in schema.items() if not _is_optional(each)]
    return {"type": "object", "properties": properties, "required": wanted}


def is_json_schema(schema: Mapping[str, Any]) -> bool:
    """Which form it is. An input may have the name of a word of JSON Schema; its value is an object then."""
    return any(word in schema and fits(schema[word]) for word, fits in _WORDS.items())


def _is_schema_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, (dict, bool)) for each in value.values())


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_WORDS = {
    "$schema": lambda value: isinstance(value, str),
    "$ref": lambda value: isinstance(value, str),
    "type": lambda value: isinstance(value, (str, list)),
    "properties": _is_schema_table,
    "required": _is_list,
    "additionalProperties": lambda value: isinstance(value, bool),
    "allOf": _is_list,
    "anyOf": _is_list,
    "oneOf": _is_list,
}


class UnknownType(ValueError):
    """A type by a name that nobody here knows."""


def type_schema(name: str, depth: int = 0) -> dict[str, Any]:
    """The JSON Schema of a type such as `list<map<string, int>>`. Raises UnknownType."""
    text = name.strip()
    if depth > _DEEPEST:
        raise UnknownType("is nested too deeply")
    if text.endswith("?"):
        inner = type_schema(text[:-1], depth + 1)
        return {"anyOf": [inner, {"type": "null"}]} if inner else {}
    if text.lower() in _SCALARS:
        return _SCALARS[text.lower()]
    if text.endswith("[]"):
        return {"type": "array", "items": type_schema(text[:-2], depth + 1)}
    generic = _GENERIC.fullmatch(text)
    if generic is not None:
        outer = generic["outer"].lower()
        inner_text = generic["angle"] if generic["angle"] is not None else generic["square"]
        if outer in _LISTS:
            return {"type": "array", "items": type_schema(inner_text, depth + 1)}
        if outer in _MAPS:
            return {
                "type": "object",
                "additionalProperties": type_schema(_value_type(inner_text), depth + 1),
            }
        if outer in ("optional", "nullable"):
            return type_schema(f"{inner_text}?", depth + 1)
    close = get_close_matches(text.lower(), _SCALARS, 1)
    hint = (
        f"did you mean {close[0]}?" if close else "expected string, int, number, bool, object, list<…>, any"
    )
    raise UnknownType(f"there is no type {kind_of(text)}; {hint}")


def _value_type(inner: str) -> str:
    """Of `string, list<int>` the second, of `int` the only."""
    depth = 0
    for number, char in enumerate(inner):
        depth += (char in "<[") - (char in ">]")
        if char == "," and not depth:
            return inner[number + 1 :]
    return inner


def _schema_of(entry: Any) -> dict[str, Any]:
    told = entry.get("type") if isinstance(entry, dict) else entry
    if isinstance(told, str):
        try:
            schema = type_schema(told)
        except UnknownType:
            return {}  # told by `schema_problems`
        if isinstance(entry, dict) and isinstance(entry.get("enum"), list):
            schema = {**schema, "enum": entry["enum"]}
        return schema
    return {}


def _is_optional(entry: Any) -> bool:
    told = entry.get("type") if isinstance(entry, dict) else entry
    if isinstance(told, str) and told.strip().endswith("?"):
        return True
    return isinstance(entry, dict) and entry.get("required") is False


def schema_problems(schema: object) -> Iterator[Problem]:
    """What is wrong with an `inputs_schema` itself."""
    if not isinstance(schema, dict) or not schema:
        return
    if is_json_schema(schema):
        yield from _json_schema_problems(schema)
        return
    for name, entry in schema.items():
        told = entry.get("type") if isinstance(entry, dict) else entry
        if not isinstance(told, str):
            message = f'expected an object with a "type", or a JSON Schema as a whole, got {kind_of(entry)}'
            yield Problem(at(("inputs_schema", name)), message)
            continue
        try:
            type_schema(told)
        except UnknownType as error:
            place = ("inputs_schema", name, "type") if isinstance(entry, dict) else ("inputs_schema", name)
            yield Problem(at(place), str(error))


def _json_schema_problems(schema: dict[str, Any]) -> list[Problem]:
    from hutch.doors.rep.schema import InvalidSchema, check

    try:
        check(schema, {})
    except InvalidSchema as error:
        return [Problem("inputs_schema", f"expected a JSON Schema: {error}")]
    return []


def declared(schema: object) -> frozenset[str] | None:
    """The names of all inputs that there can be; None where there may be any."""
    if not isinstance(schema, dict) or not schema:
        return None
    if not is_json_schema(schema):
        return frozenset(schema)
    properties = schema.get("properties")
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return frozenset(properties) if closed and isinstance(properties, dict) else None
