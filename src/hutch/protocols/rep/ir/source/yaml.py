"""Decodes YAML into JSON values. Rejects tags, aliases, merge keys and duplicate keys.

YAML 1.1 reads `on` as true and a timestamp as an object. An edge's `on` and `generated_at` must stay strings,
so scalars are read by the rules of YAML 1.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from hutch.problems import JsonPath, format_path
from hutch.text import cut

_MAX_YAML_DEPTH = 100
_EVENTS_PER_CHECK = 100
_YAML_KINDS: dict[type[Node], tuple[str, ...]] = {
    MappingNode: ("map",),
    SequenceNode: ("seq",),
    ScalarNode: ("str", "null", "bool", "int", "float"),
}


class InvalidYaml(ValueError):
    """The text is not valid YAML of this subset. The message contains the position."""


class _YamlLoader(yaml.SafeLoader):
    """Loader that reads scalars by the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _YamlLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def decode_yaml(text: str, check: Callable[[], None] = lambda: None) -> Any:
    """Decodes one document. Raises InvalidYaml.

    Calls `check` repeatedly. `check` may raise an exception to stop the decoding.
    """
    try:
        _check_yaml_events(text, check)
        loader = _YamlLoader(text)
        try:
            node = loader.get_single_node()
            return None if node is None else _yaml_value(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = _describe_error(error)
        raise InvalidYaml(f"{_yaml_position(mark)}: {problem}" if mark else problem) from None
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        what = f"character U+{ord(text[error.position]):04X}"
        raise InvalidYaml(
            f"line {line}, column {column}: {what} is not allowed; write it as an escape in double quotes"
        ) from None
    except yaml.YAMLError as error:
        raise InvalidYaml(" ".join(str(error).split())[:300]) from None
    except RecursionError:
        raise InvalidYaml("nested too deeply") from None


def find_lines(text: str) -> dict[str, int]:
    """Maps the path of each value of a YAML or JSON text to its line. Returns an empty mapping if the text
    cannot be read.

    The line of a member is the line of its key.
    """
    # Replace tabs, because JSON may be indented with tabs, which YAML does not allow.
    loader = _YamlLoader(text.replace("\t", " "))
    try:
        root = loader.get_single_node()
    except (yaml.YAMLError, RecursionError):
        return {}
    finally:
        loader.dispose()
    lines: dict[str, int] = {}
    pending: list[tuple[JsonPath, Any]] = [((), root)]
    while pending:
        path, node = pending.pop()
        children: list[tuple[str | int, Any, Any]] = []
        if isinstance(node, MappingNode):
            children = [(str(key.value), key, value) for key, value in node.value]
        elif isinstance(node, SequenceNode):
            children = [(index, item, item) for index, item in enumerate(node.value)]
        for key, start, value in children:
            lines[format_path((*path, key))] = start.start_mark.line + 1
            pending.append(((*path, key), value))
    return lines


def _describe_error(error: yaml.MarkedYAMLError) -> str:
    context = error.context or ""
    # Join `context` and `problem` if they are the two halves of one sentence.
    text = f"{context} {error.problem}" if context.startswith("expected") else str(error.problem)
    return " ".join(text.split())[:300]


def _check_yaml_events(text: str, check: Callable[[], None]) -> None:
    """Rejects aliases and very deep nesting, which could take very long to decode. Raises InvalidYaml."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_YamlLoader)):
        if not number % _EVENTS_PER_CHECK:
            check()
        if isinstance(event, yaml.AliasEvent):
            raise InvalidYaml(
                f"{_yaml_position(event.start_mark)}: aliases are not supported; repeat the value"
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_YAML_DEPTH:
            raise InvalidYaml(
                f"{_yaml_position(event.start_mark)}: nested deeper than {_MAX_YAML_DEPTH} levels"
            )


def _yaml_value(node: Node) -> Any:
    kind = _yaml_kind(node)
    if isinstance(node, MappingNode):
        members: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _yaml_key(key_node)
            if key in members:
                raise InvalidYaml(
                    f"{_yaml_position(key_node.start_mark)}: {cut(key, 60)!r} is a duplicate key"
                )
            members[key] = _yaml_value(value_node)
        return members
    if isinstance(node, SequenceNode):
        return [_yaml_value(item) for item in node.value]
    try:
        return _yaml_scalar(kind, node.value)
    except ValueError:
        raise InvalidYaml(
            f"{_yaml_position(node.start_mark)}: {cut(node.value, 60)!r} is not a valid {kind}"
        ) from None


def _yaml_key(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        raise InvalidYaml(f"{_yaml_position(node.start_mark)}: expected a key that is a string")
    _yaml_kind(node)
    if node.value == "<<" and node.style is None:
        raise InvalidYaml(
            f"{_yaml_position(node.start_mark)}: merge keys (<<) are not supported; repeat the values"
        )
    key: str = node.value
    return key


def _yaml_kind(node: Node) -> str:
    kind: str = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in _YAML_KINDS[type(node)]:
        raise InvalidYaml(
            f"{_yaml_position(node.start_mark)}: tags such as {cut(node.tag, 60)} are not supported"
        )
    return kind


def _yaml_scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text)
    if kind != "float":
        return text
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _yaml_position(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
