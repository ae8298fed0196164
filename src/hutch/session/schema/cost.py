"""Computes an upper bound for the cost of validating a value against a schema, because validation cannot be
interrupted.

Schemas are untrusted, and validation against a small schema can take years. An example is a schema of 30
levels in which each level lists the next level twice in `allOf`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from hutch.session.schema.walk import UNRESOLVED, SchemaRoot, objects_in, resolve

# Maximum cost of one validation, about 0.1 s.
MAX_COST = 2_000_000
# Limits on patterns, because each pattern is compiled, which takes time and memory.
MAX_PATTERNS = 100
MAX_PATTERN_BYTES = 128 * 1024
# Maximum number of steps to compute the cost of a schema. The cost is computed for each depth of a value, and
# the steps of all depths count.
_MAX_STEPS = 100_000
_TOO_COSTLY = "validating against it can take too long: its references multiply"
_MAX_DEPTH = 128
# Validating this many characters of a string takes as long as validating one value.
_CHARS_PER_VALUE = 8

_PROPERTY_MAPS = ("properties", "patternProperties")
_CHILD_KEYWORDS = (
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
)
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
_SAME_VALUE_KEYWORDS = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema", "extends")
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
# If a schema has a keyword in _UNEVALUATED, every schema that the schema applies to the same value (`allOf`,
# `$ref`, …) counts this many times, because the keyword evaluates these schemas again, and once more at each
# nested level.
_UNEVALUATED_FACTOR = 4
_DEFINITIONS = ("$defs", "definitions")
_SCHEMA_KEYWORDS = frozenset(
    (*_PROPERTY_MAPS, *_CHILD_KEYWORDS, *_SAME_VALUE_MAPS, *_SAME_VALUE_KEYWORDS, *_DEFINITIONS)
)
# References whose target depends on the evaluation path. They are not supported.
_DYNAMIC_REFERENCES = ("$dynamicRef", "$recursiveRef")
_IDS = ("$id", "id")

_BACKTRACKING = re.compile(r"\(\?[=!<>]|\\[1-9kGKZ]|[*+?}]\+")
_REPETITION = re.compile(r"\{[0-9]*,?([0-9]*)\}")
_BACKTRACKING_COST = 5_000
_MAX_CHEAP_STATES = 256


class SchemaCost(msgspec.Struct, frozen=True):
    """Cost of a schema for each depth of a value. If `is_unbounded`, a value with more levels than
    `cost_by_depth` has entries costs more than MAX_COST.
    """

    cost_by_depth: tuple[int, ...]
    is_unbounded: bool

    def cost_of(self, value: Any) -> int:
        """Returns an upper bound for the steps to validate a value. A million steps take less than 0.1 s."""
        total, level = 0, [value]
        for cost in self.cost_by_depth:
            texts = [item for item in level if isinstance(item, str)]
            total += cost * (len(level) + sum(map(len, texts)) // _CHARS_PER_VALUE)
            if total > MAX_COST or not level:
                return total
            level = _children(level)
        return MAX_COST + 1 if self.is_unbounded and level else total


def schema_cost(schema: Mapping[str, Any]) -> SchemaCost:
    """Computes the cost of a schema. Raises ValueError if the schema is unsupported, or too costly for every
    value.
    """
    root = SchemaRoot.of(schema, "")
    _check_supported(schema)
    flattener = _Flattener(root)
    level: dict[int, int] = {flattener.number(root.schema): 1}
    costs: list[int] = []
    steps = 0
    while level and len(costs) < _MAX_DEPTH and steps < _MAX_STEPS:
        cost = 0
        children: dict[int, int] = {}
        for number, count in level.items():
            flat = flattener.flat(number)
            cost += count * flat.cost
            for child, times in flat.children.items():
                children[child] = children.get(child, 0) + count * times
            steps += 1 + len(flat.children)
        costs.append(cost)
        if cost > MAX_COST:
            break
        level = children
    if costs[0] > MAX_COST:
        raise ValueError(_TOO_COSTLY)
    return SchemaCost(tuple(costs), bool(level))


class _FlatSchema(msgspec.Struct, frozen=True):
    """Cost of a schema together with all schemas that apply to the same value. `children` counts how often
    each child schema applies to the values inside that value.
    """

    cost: int
    children: dict[int, int]


class _Flattener:
    """Flattens the schemas inside one schema, each only once, even if many references lead to it."""

    def __init__(self, root: SchemaRoot) -> None:
        self._root = root
        self._nodes: dict[int, Any] = {}
        self._flat: dict[int, _FlatSchema | None] = {}
        self._steps = 0

    def number(self, node: Any) -> int:
        # Storing the node keeps it alive, so that its id stays unique.
        self._nodes[id(node)] = node
        return id(node)

    def flat(self, number: int) -> _FlatSchema:
        if number not in self._flat:
            self._flat[number] = None
            self._flat[number] = self._flatten(self._nodes[number])
        cost = self._flat[number]
        if cost is None:
            raise ValueError("it refers to itself endlessly")
        return cost

    def _flatten(self, node: Any) -> _FlatSchema:
        if not isinstance(node, dict):
            return _FlatSchema(1, {})
        cost = _own_cost(node)
        children: dict[int, int] = {}
        for child in _child_schemas(node):
            number = self.number(child)
            children[number] = children.get(number, 0) + 1
        for schema in _same_value_schemas(node, self._root):
            other = self.flat(self.number(schema))
            cost += other.cost
            for number, times in other.children.items():
                children[number] = children.get(number, 0) + times
            self._steps += 1 + len(other.children)
            if self._steps > _MAX_STEPS:
                raise ValueError(_TOO_COSTLY)
        return _FlatSchema(cost, children)


def _check_supported(schema: Any) -> None:
    """Raises ValueError unless all references can be resolved statically."""
    nodes = [*objects_in(schema, except_in=("enum", "const", "default"))]
    if any(isinstance(node.get(keyword), str) for node in nodes for keyword in _DYNAMIC_REFERENCES):
        raise ValueError(f"{' and '.join(_DYNAMIC_REFERENCES)} are not supported; use $ref")
    refers = any(isinstance(node.get("$ref"), str) for node in nodes)
    if refers and any(isinstance(node.get(keyword), str) for node in nodes[1:] for keyword in _IDS):
        raise ValueError("$id within a schema that has $ref is not supported; use $defs")
    patterns = sum(isinstance(node.get("pattern"), str) for node in nodes)
    patterns += sum(len(node["patternProperties"]) for node in nodes if _has_patterns(node))
    if patterns > MAX_PATTERNS:
        raise ValueError(f"it has {patterns} patterns; the maximum is {MAX_PATTERNS}")


def _has_patterns(node: dict[str, Any]) -> bool:
    return isinstance(node.get("patternProperties"), dict)


def _own_cost(node: dict[str, Any]) -> int:
    """Returns the cost of a schema's own keywords."""
    values = [value for keyword, value in node.items() if keyword not in _SCHEMA_KEYWORDS]
    pattern = node.get("pattern")
    return 1 + sum(map(_size, values)) + (_pattern_cost(pattern) if isinstance(pattern, str) else 0)


def _size(value: Any) -> int:
    count, level = 0, [value]
    while level:
        count += len(level)
        level = _children(level)
    return count


def _pattern_cost(pattern: str) -> int:
    if _BACKTRACKING.search(pattern):
        return _BACKTRACKING_COST
    counts = [int(count[:6]) for count in _REPETITION.findall(pattern) if count]
    if ")" not in pattern and sum(counts) <= _MAX_CHEAP_STATES:
        return 1
    states = 1
    for count in counts:
        states *= max(count, 1)
    return min(states * _CHARS_PER_VALUE, MAX_COST) if states > _MAX_CHEAP_STATES else 1


def _child_schemas(node: dict[str, Any]) -> Iterator[Any]:
    """Yields the schemas that apply to the items, properties and property names of a value."""
    for keyword in _PROPERTY_MAPS:
        if isinstance(children := node.get(keyword), dict):
            yield from children.values()
    if isinstance(children := node.get("patternProperties"), dict):
        yield from ({"pattern": pattern} for pattern in children)
    yield from chain.from_iterable(_as_list(node.get(keyword)) for keyword in _CHILD_KEYWORDS)


def _same_value_schemas(node: dict[str, Any], root: SchemaRoot) -> list[Any]:
    """Returns the other schemas that apply to the same value as `node`."""
    schemas = [schema for keyword in _SAME_VALUE_KEYWORDS for schema in _as_list(node.get(keyword))]
    for keyword in _SAME_VALUE_MAPS:
        if isinstance(more := node.get(keyword), dict):
            schemas += more.values()
    if isinstance(ref := node.get("$ref"), str):
        target = resolve(ref, root)
        if target is UNRESOLVED:
            raise ValueError(f"$ref: {ref[:60]!r} has no target")
        schemas.append(target)
    return schemas * _UNEVALUATED_FACTOR if any(keyword in node for keyword in _UNEVALUATED) else schemas


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _children(level: list[Any]) -> list[Any]:
    """Returns the items, properties and property names of these values."""
    containers = (value for value in level if isinstance(value, dict | list))
    parts = (chain(value, value.values()) if isinstance(value, dict) else value for value in containers)
    return [*chain.from_iterable(parts)]
