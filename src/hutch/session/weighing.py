"""How much work a schema can make of a value: told before it is done, because nothing can stop it then.

Schemas are anybody's, and few words make one that takes years: `allOf` twice the next, thirty times over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from hutch.session.schemas import NOTHING, Root, resolve

# Some 0.1 s of a value that is checked.
MOST_WORK = 2_000_000
# Each is compiled, which takes time and memory of its own.
MOST_PATTERNS = 100
MOST_PATTERN_BYTES = 128 * 1024
# Steps through a schema, for all depths of a value together.
_MOST_STEPS = 100_000
_TOO_HEAVY = "it takes too long to be checked against: what it refers to multiplies"
_MOST_DEPTH = 128
# As many letters take as long as a value.
_LETTERS = 8

_MAPS = ("properties", "patternProperties")
_BELOW = (
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
)
_MAPS_HERE = ("dependentSchemas", "dependencies")
_HERE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema", "extends")
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
# For those, what stands beside them is gone through again, and again within.
_TIMES_UNEVALUATED = 4
_ELSEWHERE = ("$defs", "definitions")
_SCHEMAS = frozenset((*_MAPS, *_BELOW, *_MAPS_HERE, *_HERE, *_ELSEWHERE))
# What they lead to depends on the way there.
_DYNAMIC = ("$dynamicRef", "$recursiveRef")
_IDS = ("$id", "id")

_FANCY = re.compile(r"\(\?[=!<>]|\\[1-9kGKZ]|[*+?}]\+")
_COUNTED = re.compile(r"\{[0-9]*,?([0-9]*)\}")
_FANCY_WEIGHT = 5_000
_FEW_STATES = 256


class Weights(msgspec.Struct, frozen=True):
    """Of a schema, for each depth of a value; beyond the last there is nothing to do, or no end of it."""

    by_depth: tuple[int, ...]
    endless: bool

    def work(self, value: Any) -> int:
        """At most so much, in steps of which a million take less than a tenth of a second."""
        done, level = 0, [value]
        for weight in self.by_depth:
            texts = [each for each in level if isinstance(each, str)]
            done += weight * (len(level) + sum(map(len, texts)) // _LETTERS)
            if done > MOST_WORK or not level:
                return done
            level = _below(level)
        return MOST_WORK + 1 if self.endless and level else done


def weigh(schema: Mapping[str, Any]) -> Weights:
    """Raises ValueError for what cannot be weighed, or is too heavy for any value; it says why."""
    root = Root.of(schema, "")
    _check(schema)
    flattening = _Flattening(root)
    level: dict[int, int] = {flattening.number(root.schema): 1}
    weights: list[int] = []
    steps = 0
    while level and len(weights) < _MOST_DEPTH and steps < _MOST_STEPS:
        weight = 0
        below: dict[int, int] = {}
        for number, count in level.items():
            flat = flattening.flat(number)
            weight += count * flat.weight
            for each, times in flat.below.items():
                below[each] = below.get(each, 0) + count * times
            steps += 1 + len(flat.below)
        weights.append(weight)
        if weight > MOST_WORK:
            break
        level = below
    if weights[0] > MOST_WORK:
        raise ValueError(_TOO_HEAVY)
    return Weights(tuple(weights), bool(level))


class _Flat(msgspec.Struct, frozen=True):
    """A schema with all that the same value is checked against: what that takes, and what is for the values
    within, each so many times."""

    weight: int
    below: dict[int, int]


class _Flattening:
    """The schemas within one, by number, each flattened once however often it is referred to."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._nodes: dict[int, Any] = {}
        self._flat: dict[int, _Flat | None] = {}
        self._steps = 0

    def number(self, node: Any) -> int:
        # Held on to, so that the number stays its own.
        self._nodes[id(node)] = node
        return id(node)

    def flat(self, number: int) -> _Flat:
        if number not in self._flat:
            self._flat[number] = None
            self._flat[number] = self._flattened(self._nodes[number])
        found = self._flat[number]
        if found is None:
            raise ValueError("it refers to itself without an end")
        return found

    def _flattened(self, node: Any) -> _Flat:
        if not isinstance(node, dict):
            return _Flat(1, {})
        weight = _own(node)
        below: dict[int, int] = {}
        for each in _deeper(node):
            number = self.number(each)
            below[number] = below.get(number, 0) + 1
        for each in _beside(node, self._root):
            other = self.flat(self.number(each))
            weight += other.weight
            for number, times in other.below.items():
                below[number] = below.get(number, 0) + times
            self._steps += 1 + len(other.below)
            if self._steps > _MOST_STEPS:
                raise ValueError(_TOO_HEAVY)
        return _Flat(weight, below)


def _check(schema: Any) -> None:
    """What references lead to has to be known: no other base within, nothing that depends on the way."""
    nodes = [*_walk(schema)]
    if any(isinstance(each.get(word), str) for each in nodes for word in _DYNAMIC):
        raise ValueError(f"{' and '.join(_DYNAMIC)} are not supported; use $ref")
    refers = any(isinstance(each.get("$ref"), str) for each in nodes)
    if refers and any(isinstance(each.get(word), str) for each in nodes[1:] for word in _IDS):
        raise ValueError("$id within a schema that has $ref is not supported; use $defs")
    patterns = sum(isinstance(each.get("pattern"), str) for each in nodes)
    patterns += sum(len(each["patternProperties"]) for each in nodes if _has_patterns(each))
    if patterns > MOST_PATTERNS:
        raise ValueError(f"it has {patterns} patterns; the most is {MOST_PATTERNS}")


def _has_patterns(node: dict[str, Any]) -> bool:
    return isinstance(node.get("patternProperties"), dict)


def _walk(schema: Any) -> Iterator[dict[str, Any]]:
    """All objects, the outermost first, but for those in what are values."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += [value for word, value in each.items() if word not in ("enum", "const", "default")]
        elif isinstance(each, list):
            waiting += each


def _own(node: dict[str, Any]) -> int:
    """Of what a schema says itself."""
    said = [value for word, value in node.items() if word not in _SCHEMAS]
    pattern = node.get("pattern")
    return 1 + sum(map(_size, said)) + (_of_pattern(pattern) if isinstance(pattern, str) else 0)


def _size(value: Any) -> int:
    count, level = 0, [value]
    while level:
        count += len(level)
        level = _below(level)
    return count


def _of_pattern(pattern: str) -> int:
    if _FANCY.search(pattern):
        return _FANCY_WEIGHT
    counts = [int(each[:6]) for each in _COUNTED.findall(pattern) if each]
    if ")" not in pattern and sum(counts) <= _FEW_STATES:
        return 1
    states = 1
    for each in counts:
        states *= max(each, 1)
    return min(states * _LETTERS, MOST_WORK) if states > _FEW_STATES else 1


def _deeper(node: dict[str, Any]) -> Iterator[Any]:
    """What the values within a value are checked against."""
    for word in _MAPS:
        if isinstance(found := node.get(word), dict):
            yield from found.values()
    if isinstance(found := node.get("patternProperties"), dict):
        yield from ({"pattern": each} for each in found)
    yield from chain.from_iterable(_listed(node.get(word)) for word in _BELOW)


def _beside(node: dict[str, Any], root: Root) -> list[Any]:
    """What the same value is checked against too."""
    found = [each for word in _HERE for each in _listed(node.get(word))]
    for word in _MAPS_HERE:
        if isinstance(more := node.get(word), dict):
            found += more.values()
    if isinstance(ref := node.get("$ref"), str):
        target = resolve(ref, root)
        if target is NOTHING:
            raise ValueError(f"$ref: {ref[:60]!r} leads nowhere in it")
        found.append(target)
    return found * _TIMES_UNEVALUATED if any(word in node for word in _UNEVALUATED) else found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _below(level: list[Any]) -> list[Any]:
    """The values within these, and the names that they have."""
    inner = [each for each in level if isinstance(each, dict | list)]
    return [
        part for each in inner for part in (chain(each, each.values()) if isinstance(each, dict) else each)
    ]
