"""Walks untrusted JSON Schemas safely: resolves references, and checks whether an empty object is valid."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

MAX_NODES = 20_000  # maximum number of nodes in one schema
MAX_NESTING = 100  # nested arrays and objects in one schema

REFERENCES = ("$ref", "$dynamicRef")
COMBINING_KEYWORDS = (*REFERENCES, "anyOf", "oneOf", "allOf")
# maximum number of schemas to follow; beyond it the answer may be wrong, which does little harm
_MAX_STEPS = 100
OBJECT_KEYWORDS = ("properties", "required", "additionalProperties", "patternProperties")
ARRAY_KEYWORDS = ("items", "prefixItems")


class SchemaRoot(NamedTuple):
    """A schema and the data for resolving its references."""

    schema: Any
    label: str
    names: dict[int, str]
    """Type names by the `id()` of the schema, because several references can lead to one schema."""
    bodies: dict[int, tuple[str, list[str]]]
    anchors: dict[str, Any]
    """Schemas by their anchor, such as `#name`. Filled when a reference to an anchor is resolved."""

    @classmethod
    def of(cls, schema: Any, label: str) -> SchemaRoot:
        """`label` is the name of the type if the schema refers to its own root."""
        return cls(plain_copy(schema), label, {}, {}, {})


UNRESOLVED = object()


def resolve(ref: str, root: SchemaRoot) -> Any:
    """Resolves a reference within the schema. Returns UNRESOLVED if there is no target."""
    own_id = root.schema.get("$id") if isinstance(root.schema, dict) else None
    if isinstance(own_id, str) and own_id and ref.startswith(own_id):
        ref = ref[len(own_id) :] or "#"
    if ref == "#":
        return root.schema
    if not ref.startswith("#/"):
        if not root.anchors:
            root.anchors.update(_anchors(root.schema))
        return root.anchors.get(ref, UNRESOLVED)
    node = root.schema
    for key in pointer_steps(ref):
        if isinstance(node, list) and key.isdecimal() and len(key) < 6 and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return UNRESOLVED
    return node


def pointer_steps(ref: str) -> list[str]:
    """Splits a reference into the steps of its JSON pointer. The last step is a good name for the target."""
    _, _, pointer = ref.partition("#")
    parts = unquote(pointer).removeprefix("/").split("/")
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def _anchors(schema: Any) -> dict[str, Any]:
    anchors: dict[str, Any] = {"": UNRESOLVED}
    for node in objects_in(schema):
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                anchors.setdefault(f"#{node[keyword]}", node)
    return anchors


def references(node: Any) -> list[str]:
    return [
        part[keyword]
        for part in objects_in(node)
        for keyword in REFERENCES
        if isinstance(part.get(keyword), str)
    ]


def objects_in(node: Any, *, except_in: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yields all objects in a schema, outermost first. Skips the values of the keywords in `except_in`."""
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, dict):
            yield current
            stack += [value for keyword, value in current.items() if keyword not in except_in]
        elif isinstance(current, list):
            stack += current


def implied_type(schema: dict[str, Any]) -> str | None:
    if any(keyword in schema for keyword in OBJECT_KEYWORDS):
        return "object"
    return "array" if any(keyword in schema for keyword in ARRAY_KEYWORDS) else None


def allows_empty_object(root: SchemaRoot) -> bool:
    """Returns True if the schema requires an object and allows `{}`, so that a call may omit its input.
    Returns False in case of doubt.
    """
    return _requires_object(root.schema, root, [_MAX_STEPS]) and _accepts_empty(
        root.schema, root, [_MAX_STEPS]
    )


def allows_only_empty_object(root: SchemaRoot) -> bool:
    """Returns True if the schema requires an object without any properties."""
    schema = root.schema
    for _ in range(_MAX_STEPS):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        schema = resolve(schema["$ref"], root)
    if not isinstance(schema, dict) or any(keyword in schema for keyword in COMBINING_KEYWORDS):
        return False
    open_ended = schema.get("additionalProperties") or "patternProperties" in schema
    return not open_ended and schema.get("properties") == {} and allows_empty_object(root)


def _accepts_empty(schema: Any, root: SchemaRoot, left: list[int]) -> bool:
    left[0] -= 1
    if not isinstance(schema, dict):
        return schema is True
    if left[0] < 0 or schema.get("required") or schema.get("minProperties"):
        return False
    if any(keyword in schema for keyword in ("const", "enum", "not", "if", "oneOf")):
        return False
    types = schema.get("type", "object")
    if "object" not in (types if isinstance(types, list) else [types]):
        return False
    return all(_accepts_empty(part, root, left) for part in _conjuncts(schema, root)) and (
        "anyOf" not in schema or any(_accepts_empty(part, root, left) for part in as_list(schema["anyOf"]))
    )


def _requires_object(schema: Any, root: SchemaRoot, left: list[int]) -> bool:
    """Returns True if the schema requires an object, itself or through `allOf` or references."""
    left[0] -= 1
    if not isinstance(schema, dict) or left[0] < 0:
        return False
    if schema.get("type", implied_type(schema)) == "object":
        return True
    return any(_requires_object(part, root, left) for part in _conjuncts(schema, root))


def _conjuncts(schema: dict[str, Any], root: SchemaRoot) -> Iterator[Any]:
    for keyword in REFERENCES:
        if isinstance(schema.get(keyword), str):
            yield resolve(schema[keyword], root)
    yield from as_list(schema.get("allOf"))


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class _TooLarge(Exception):
    """A schema has more nodes than MAX_NODES."""


def plain_copy(schema: Any) -> Any:
    """Returns a copy that consists of plain JSON values with bounded depth. Returns True, which allows any
    value, if the schema is too large.
    """
    left = MAX_NODES

    def copy(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if type(value) is str:  # the most common type
            left -= len(value) // 64
        if left < 0:
            raise _TooLarge
        if type(value) in _PLAIN_TYPES:
            return value
        if isinstance(value, Mapping):
            items = value.items() if depth < MAX_NESTING else ()
            return {copy(key, depth): copy(item, depth + 1) for key, item in items if isinstance(key, str)}
        if isinstance(value, (list, tuple)):
            return [copy(item, depth + 1) for item in value] if depth < MAX_NESTING else []
        return _plain_scalar(value)

    try:
        return copy(schema, 0)
    except _TooLarge:
        return True


_PLAIN_TYPES = (str, bool, type(None))


def _plain_scalar(value: Any) -> Any:
    """Converts instances of subclasses of str, int and float, which may have their own JSON form, to plain
    values. Returns None for numbers that are not JSON, and True for other objects.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 1024 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return True
