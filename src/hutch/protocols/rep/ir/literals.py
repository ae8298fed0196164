"""Decodes literals in the string parameters of a step: `"3"`, `"[1, 2]"`, `"'text'"`."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection
from typing import Any

import msgspec

_MAX_PYTHON_LITERAL = 10_000
_PYTHON_WORDS = ("True", "False", "None")
_LITERAL_STARTS = frozenset("\"'[{(+-0123456789.")
_JSON_TYPES_OF: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


def coerce_literal(text: str, types: Collection[str] | None, *, eager: bool) -> Any:
    """Decodes the literal in a string, or returns the string.

    `types` are the allowed JSON Schema types, None for all. With `eager`, any text that is a literal is
    decoded. Flows of the public compiler need this, because the compiler writes string values with quotes
    inside of the string. Without `eager`, the text stays a string if a string is allowed.
    """
    if not eager and (types is None or "string" in types):
        return text
    value = _parse_literal(text)
    if value is text or types is None:
        return value
    return value if any(name in types for name in types_of(value)) else text


def _parse_literal(text: str) -> Any:
    """Decodes JSON or a Python literal. Returns the text unchanged if it is neither."""
    bare = text.strip()
    try:
        return msgspec.json.decode(bare)
    except (ValueError, RecursionError):
        pass
    if bare not in _PYTHON_WORDS and (bare[:1] not in _LITERAL_STARTS or len(bare) > _MAX_PYTHON_LITERAL):
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides warnings about unknown escapes
            return _to_json(ast.literal_eval(bare))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _to_json(value: Any) -> Any:
    """Checks and converts a Python literal. Raises ValueError for values that do not exist in JSON."""
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key that is not a string")
        return {key: _to_json(item) for key, item in value.items()}
    if type(value) not in _JSON_TYPES_OF or value != value or value in (float("inf"), float("-inf")):
        raise ValueError("not a JSON value")
    return value


def types_of(value: Any) -> tuple[str, ...]:
    """Returns the JSON Schema types of a value."""
    is_integral = isinstance(value, float) and value.is_integer()
    return ("integer", "number") if is_integral else _JSON_TYPES_OF[type(value)]


def types_in(schema: Any) -> frozenset[str] | None:
    """Returns the types that a JSON Schema allows, or None if the schema allows all types."""
    if not isinstance(schema, dict):
        return None
    choices = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(choices, list):
        allowed = [types_in(choice) for choice in choices]
        return None if None in allowed else frozenset(name for names in allowed for name in names or ())
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list):
        return None
    return frozenset(name for value in values for name in _JSON_TYPES_OF.get(type(value), ()))
