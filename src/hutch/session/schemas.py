"""JSON Schemas of anybody's, made safe to walk: what they refer to, and whether an empty object fits them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

MAX_NODES = 20_000  # of one schema
MAX_NESTING = 100  # of its JSON

REFERENCES = ("$ref", "$dynamicRef")
COMBINING = (*REFERENCES, "anyOf", "oneOf", "allOf")
_MAX_STEPS = 100  # from schema to schema, where a wrong guess does little harm
OF_OBJECTS = ("properties", "required", "additionalProperties", "patternProperties")
OF_ARRAYS = ("items", "prefixItems")


class Root(NamedTuple):
    """A whole schema: what references start from."""

    schema: Any
    label: str
    names: dict[int, str]
    """Type names by the identity of what is named: one thing can be referred to in many ways."""
    bodies: dict[int, tuple[str, list[str]]]
    anchors: dict[str, Any]
    """Schemas that have names of their own, by the references to them; empty until one is asked for."""

    @classmethod
    def of(cls, schema: Any, label: str) -> Root:
        """`label` is the type's name, should the schema refer to itself as a whole."""
        return cls(plain(schema), label, {}, {}, {})


NOTHING = object()


def resolve(ref: str, root: Root) -> Any:
    """What a reference into the schema itself leads to."""
    own = root.schema.get("$id") if isinstance(root.schema, dict) else None
    if isinstance(own, str) and own and ref.startswith(own):
        ref = ref[len(own) :] or "#"
    if ref == "#":
        return root.schema
    if not ref.startswith("#/"):
        if not root.anchors:
            root.anchors.update(_anchors(root.schema))
        return root.anchors.get(ref, NOTHING)
    found = root.schema
    for key in steps(ref):
        if isinstance(found, list) and key.isdecimal() and len(key) < 6 and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return NOTHING
    return found


def steps(ref: str) -> list[str]:
    """The last of these is what one would call the thing referred to."""
    _, _, pointer = ref.partition("#")
    parts = unquote(pointer).removeprefix("/").split("/")
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def _anchors(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"": NOTHING}
    for each in _objects(schema):
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(each.get(word), str):
                found.setdefault(f"#{each[word]}", each)
    return found


def references(node: Any) -> list[str]:
    return [each[word] for each in _objects(node) for word in REFERENCES if isinstance(each.get(word), str)]


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def implied(schema: dict[str, Any]) -> str | None:
    if any(word in schema for word in OF_OBJECTS):
        return "object"
    return "array" if any(word in schema for word in OF_ARRAYS) else None


def fits_empty(root: Root) -> bool:
    """Whether an object is wanted and `{}` fits, so that a call may leave its input out. If in doubt: no."""
    return _is_object(root.schema, root, [_MAX_STEPS]) and _lets_empty(root.schema, root, [_MAX_STEPS])


def takes_nothing(root: Root) -> bool:
    """Whether an object is wanted that has no properties at all."""
    schema = root.schema
    for _ in range(_MAX_STEPS):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        schema = resolve(schema["$ref"], root)
    if not isinstance(schema, dict) or any(word in schema for word in COMBINING):
        return False
    open_ended = schema.get("additionalProperties") or "patternProperties" in schema
    return not open_ended and schema.get("properties") == {} and fits_empty(root)


def _lets_empty(schema: Any, root: Root, left: list[int]) -> bool:
    left[0] -= 1
    if not isinstance(schema, dict):
        return schema is True
    if left[0] < 0 or schema.get("required") or schema.get("minProperties"):
        return False
    if any(word in schema for word in ("const", "enum", "not", "if", "oneOf")):
        return False
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        return False
    return all(_lets_empty(each, root, left) for each in _conjuncts(schema, root)) and (
        "anyOf" not in schema or any(_lets_empty(each, root, left) for each in list_of(schema["anyOf"]))
    )


def _is_object(schema: Any, root: Root, left: list[int]) -> bool:
    """Whether the schema says so, itself or in what it must fit as well."""
    left[0] -= 1
    if not isinstance(schema, dict) or left[0] < 0:
        return False
    if schema.get("type", implied(schema)) == "object":
        return True
    return any(_is_object(each, root, left) for each in _conjuncts(schema, root))


def _conjuncts(schema: dict[str, Any], root: Root) -> Iterator[Any]:
    for word in REFERENCES:
        if isinstance(schema.get(word), str):
            yield resolve(schema[word], root)
    yield from list_of(schema.get("allOf"))


def dict_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class _TooLarge(Exception):
    """A schema has more nodes than anyone would read."""


def plain(schema: Any) -> Any:
    """A copy of bare JSON values, bounded in depth; True, which is any value, for what is too large."""
    left = MAX_NODES

    def copy(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if type(value) is str:  # most are
            left -= len(value) // 64
        if left < 0:
            raise _TooLarge
        if type(value) in _BARE:
            return value
        if isinstance(value, Mapping):
            items = value.items() if depth < MAX_NESTING else ()
            return {copy(key, depth): copy(each, depth + 1) for key, each in items if isinstance(key, str)}
        if isinstance(value, (list, tuple)):
            return [copy(each, depth + 1) for each in value] if depth < MAX_NESTING else []
        return _scalar(value)

    try:
        return copy(schema, 0)
    except _TooLarge:
        return True


_BARE = (str, bool, type(None))


def _scalar(value: Any) -> Any:
    """Without subclasses, which may write themselves in their own way, and numbers that are not JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 1024 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return True
