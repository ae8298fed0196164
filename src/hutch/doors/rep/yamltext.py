"""YAML read as JSON: the same types, no tags, no aliases, no key twice.

YAML 1.1 takes `on` for true and a time for an object; an edge's `on` and `generated_at` must survive.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_DEEPEST = 100
_KINDS: dict[type[Node], tuple[str, ...]] = {
    MappingNode: ("map",),
    SequenceNode: ("seq",),
    ScalarNode: ("str", "null", "bool", "int", "float"),
}


class InvalidYaml(ValueError):
    """A text that is no such YAML; says where."""


class _Loader(yaml.SafeLoader):
    """With the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def decode(text: str) -> Any:
    """The value of one document. Raises InvalidYaml."""
    loader = _Loader(text)
    try:
        _look_ahead(text)
        node = loader.get_single_node()
        return None if node is None else _value(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise InvalidYaml(f"{_place(mark)}: {error.problem}" if mark else str(error.problem)) from None
    except yaml.YAMLError as error:
        raise InvalidYaml(" ".join(str(error).split())[:300]) from None
    except RecursionError:
        raise InvalidYaml("nested too deeply") from None
    finally:
        loader.dispose()


def _look_ahead(text: str) -> None:
    """Raises InvalidYaml for what could take for ever: aliases, and very deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidYaml(f"{_place(event.start_mark)}: aliases are not read; write it out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise InvalidYaml(f"{_place(event.start_mark)}: nested deeper than {_DEEPEST} levels")


def _value(node: Node) -> Any:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in _KINDS[type(node)]:
        raise InvalidYaml(f"{_place(node.start_mark)}: tags such as {node.tag} are not read")
    if isinstance(node, MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise InvalidYaml(f"{_place(key_node.start_mark)}: expected a key that is a string")
            if key_node.value in found:
                raise InvalidYaml(f"{_place(key_node.start_mark)}: {key_node.value!r} is there twice")
            found[key_node.value] = _value(value_node)
        return found
    if isinstance(node, SequenceNode):
        return [_value(each) for each in node.value]
    try:
        return _scalar(kind, node.value)
    except ValueError:
        raise InvalidYaml(f"{_place(node.start_mark)}: {node.value!r} is no {kind}") from None


def _scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text)
    return float(text) if kind == "float" else text


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
