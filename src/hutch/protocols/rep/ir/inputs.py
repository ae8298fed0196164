"""Checks the inputs of a run against the flow's `inputs_schema`.

`inputs_schema` is either a JSON Schema of all inputs, or maps each input to a type, as the public compiler
writes it: `{"ids": {"type": "list<string>"}}`. In the second form every input is required, unless it has
`"required": false` or its type ends with a question mark. Additional inputs are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hutch.problems import NameSuggester, Problem, describe_value, format_path
from hutch.text import did_you_mean

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow

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
_MAX_TYPE_DEPTH = 20
_MAX_TYPE_CHARS = 500


def check_inputs(flow: Flow, inputs: Mapping[str, Any]) -> list[Problem]:
    """Returns the problems of the inputs. The paths of the problems begin with `inputs`."""
    if not isinstance(inputs, dict):
        return [Problem("inputs", f"expected an object, got {describe_value(inputs)}")]
    schema = as_json_schema(flow.inputs_schema)
    if not schema:
        return []
    from hutch.session.schema.problems import check_against_schema, describe_fault
    from hutch.session.schema.validate import InvalidSchema

    try:
        problems = check_against_schema(schema, inputs, ("inputs",), untrusted=True)
    except InvalidSchema as error:
        # Only flows that `parse_flow` has not checked get here, because `parse_flow` rejects such schemas.
        return [Problem("inputs_schema", f"expected a JSON Schema: {describe_fault(error)}")]
    return _with_misspelled(problems, inputs, declared_names(flow.inputs_schema))


def _with_misspelled(
    problems: list[Problem], inputs: Mapping[str, Any], names: frozenset[str] | None
) -> list[Problem]:
    """Adds a hint to the problem of each missing input if an unknown input has a similar name."""
    unknown = inputs.keys() - (names or ())
    if not problems or not names or not unknown:
        return problems
    suggester = NameSuggester()
    missing = {format_path(("inputs", name)): name for name in names - inputs.keys()}

    def explained(problem: Problem) -> Problem:
        close = suggester.closest(missing[problem.path], unknown) if problem.path in missing else None
        hint = f"; {describe_value(close)} is not an input of this flow"
        return problem if close is None else Problem(problem.path, problem.message + hint)

    return [explained(problem) for problem in problems]


def as_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Converts an `inputs_schema` of either form to a JSON Schema. Raises UnknownType."""
    if not schema or is_json_schema(schema):
        return schema
    properties = {name: _entry_schema(entry) for name, entry in schema.items()}
    required = [name for name, entry in schema.items() if not _is_optional(entry)]
    return {"type": "object", "properties": properties, "required": required}


def is_json_schema(schema: Mapping[str, Any]) -> bool:
    """Returns True if an `inputs_schema` is a JSON Schema, not a table of types.

    A keyword counts only if its value has the type that JSON Schema requires, because an input may have the
    name of a keyword.
    """
    return any(
        word in schema and has_keyword_type(schema[word])
        for word, has_keyword_type in _SCHEMA_KEYWORDS.items()
    )


def _is_schema_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(schema, (dict, bool)) for schema in value.values())


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_SCHEMA_KEYWORDS = {
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
    """The type of an input is unknown."""


def _type_schema(name: str, depth: int = 0) -> dict[str, Any]:
    """Returns the JSON Schema of a type such as `list<map<string, int>>`. Raises UnknownType."""
    text = name.strip()
    if len(text) > _MAX_TYPE_CHARS:
        raise UnknownType(f"expected at most {_MAX_TYPE_CHARS} characters, got {len(text)}")
    if depth > _MAX_TYPE_DEPTH:
        raise UnknownType("is nested too deeply")
    if text.endswith("?"):
        inner = _type_schema(text[:-1], depth + 1)
        return {"anyOf": [inner, {"type": "null"}]} if inner else {}
    if text.lower() in _SCALARS:
        return _SCALARS[text.lower()]
    if text.endswith("[]"):
        return {"type": "array", "items": _type_schema(text[:-2], depth + 1)}
    generic = _GENERIC.fullmatch(text)
    if generic is not None:
        outer = generic["outer"].lower()
        inner_text = generic["angle"] if generic["angle"] is not None else generic["square"]
        if outer in _LISTS:
            return {"type": "array", "items": _type_schema(inner_text, depth + 1)}
        if outer in _MAPS:
            return {
                "type": "object",
                "additionalProperties": _type_schema(_value_type(inner_text), depth + 1),
            }
        if outer in ("optional", "nullable"):
            return _type_schema(f"{inner_text}?", depth + 1)
    close = did_you_mean(text.lower(), _SCALARS)
    hint = f"did you mean {close}?" if close else "expected string, int, number, bool, object, list<…>, any"
    raise UnknownType(f"there is no type {describe_value(text)}; {hint}")


def _value_type(inner: str) -> str:
    """Returns the value type of a map: `list<int>` for `string, list<int>`, and `int` for `int`."""
    depth = 0
    for index, char in enumerate(inner):
        depth += (char in "<[") - (char in ">]")
        if char == "," and not depth:
            return inner[index + 1 :]
    return inner


def _entry_schema(entry: Any) -> dict[str, Any]:
    type_name = entry.get("type") if isinstance(entry, dict) else entry
    if isinstance(type_name, str):
        try:
            schema = _type_schema(type_name)
        except UnknownType:
            return {}  # `schema_problems` reports the error
        if isinstance(entry, dict) and isinstance(entry.get("enum"), list):
            schema = {**schema, "enum": entry["enum"]}
        return schema
    return {}


def _is_optional(entry: Any) -> bool:
    type_name = entry.get("type") if isinstance(entry, dict) else entry
    if isinstance(type_name, str) and type_name.strip().endswith("?"):
        return True
    return isinstance(entry, dict) and entry.get("required") is False


def schema_problems(schema: object) -> Iterator[Problem]:
    """Yields the problems of the `inputs_schema` itself."""
    if not isinstance(schema, dict) or not schema:
        return
    if is_json_schema(schema):
        yield from _json_schema_problems(schema)
        return
    for name, entry in schema.items():
        type_name = entry.get("type") if isinstance(entry, dict) else entry
        if not isinstance(type_name, str):
            message = (
                f'expected an object with a "type", or a JSON Schema as a whole, got {describe_value(entry)}'
            )
            yield Problem(format_path(("inputs_schema", name)), message)
            continue
        try:
            _type_schema(type_name)
        except UnknownType as error:
            path = ("inputs_schema", name, "type") if isinstance(entry, dict) else ("inputs_schema", name)
            yield Problem(format_path(path), str(error))


def _json_schema_problems(schema: dict[str, Any]) -> list[Problem]:
    from hutch.session.schema.problems import check_against_schema, describe_fault
    from hutch.session.schema.validate import InvalidSchema

    try:
        check_against_schema(schema, {})
    except InvalidSchema as error:
        return [Problem("inputs_schema", f"expected a JSON Schema: {describe_fault(error)}")]
    return []


def declared_names(schema: object) -> frozenset[str] | None:
    """Returns the names of all possible inputs, or None if any name is allowed."""
    if not isinstance(schema, dict) or not schema:
        return None
    if not is_json_schema(schema):
        return frozenset(schema)
    properties = schema.get("properties")
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return frozenset(properties) if closed and isinstance(properties, dict) else None


def optional_names(schema: object) -> frozenset[str]:
    """Returns the names of the declared inputs that a run need not have."""
    if not isinstance(schema, dict) or not schema:
        return frozenset()
    if not is_json_schema(schema):
        return frozenset(name for name, entry in schema.items() if _is_optional(entry))
    properties, required = schema.get("properties"), schema.get("required")
    names = frozenset(properties) if isinstance(properties, dict) else frozenset()
    return names.difference(required) if isinstance(required, list) else names
