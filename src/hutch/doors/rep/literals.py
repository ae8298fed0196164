"""Literals in strings: the public compiler leaves the parameters of a step as they stand in its source."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection
from typing import Any

import msgspec

_LONGEST_PYTHON = 10_000
_WORDS = ("True", "False", "None")
_BEGINNINGS = frozenset("\"'[{(+-0123456789.")
_TYPES: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


def literal(text: str, types: Collection[str] | None, *, eager: bool) -> Any:
    """What a text stands for, or itself.

    `types` are those that JSON Schema allows here, None for all. Eager is right for what the public compiler
    made: there a string is in quotes, and what is in none is the string only if it can be nothing else.
    Otherwise a string is what it is, unless a string cannot be meant.
    """
    if not eager and (types is None or "string" in types):
        return text
    value = read(text)
    if value is text or types is None:
        return value
    return value if any(each in types for each in types_of(value)) else text


def read(text: str) -> Any:
    """The JSON or Python literal that a text is, else the text itself."""
    bare = text.strip()
    try:
        return msgspec.json.decode(bare)
    except (ValueError, RecursionError):
        pass
    if bare not in _WORDS and (bare[:1] not in _BEGINNINGS or len(bare) > _LONGEST_PYTHON):
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return _plain(ast.literal_eval(bare))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _plain(value: Any) -> Any:
    """Raises ValueError for what JSON has not."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key that is no string")
        return {key: _plain(each) for key, each in value.items()}
    if type(value) not in _TYPES or value != value or value in (float("inf"), float("-inf")):
        raise ValueError("nothing that JSON has")
    return value


def types_of(value: Any) -> tuple[str, ...]:
    """The types that JSON Schema has for a value."""
    whole = isinstance(value, float) and value.is_integer()
    return ("integer", "number") if whole else _TYPES[type(value)]


def types_in(schema: Any) -> frozenset[str] | None:
    """The types that a JSON Schema allows, by what it says of itself; None if it does not say."""
    if not isinstance(schema, dict):
        return None
    choices = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(choices, list):
        found = [types_in(each) for each in choices]
        return None if None in found else frozenset(word for each in found for word in each or ())
    told = schema.get("type")
    if isinstance(told, str):
        return frozenset({told})
    if isinstance(told, list):
        return frozenset(each for each in told if isinstance(each, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list):
        return None
    return frozenset(word for each in values for word in _TYPES.get(type(each), ()))
