"""Lists all problems of a flow's shape, because decoding stops at the first one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import msgspec

from hutch.problems import MAX_PROBLEMS, JsonPath, Problem, format_path
from hutch.protocols.rep.ir import schema

_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "flow": schema.FlowHeader,
    "constants": schema.FlowConstants,
    "graph": schema.FlowGraph,
    "metadata": schema.FlowMetadata,
}
_MAX_TEXT_CHARS = 1_000


def shape_problems(document: dict[str, Any], error: msgspec.ValidationError) -> Iterator[Problem]:
    """Yields the problems of the shape, or the message of the decoder if the schema finds none.

    The validator collects all problems of a value before it returns the first one, and each problem contains
    a copy of the value. To keep these copies small, this function validates the head of the flow, every step
    and every edge separately, and leaves out the contents of their fields.
    """
    has_problems = False
    for problem in _problems(document):
        has_problems = True
        yield problem
    if not has_problems:
        yield Problem("", str(error))


def _problems(document: dict[str, Any]) -> Iterator[Problem]:
    from hutch.session.schema.problems import check_against_schema

    yield from check_against_schema(_head_schema(), _head(document))
    graph = document.get("graph")
    for key, kind, max_items in (
        ("nodes", schema.GraphNode, schema.MAX_NODES),
        ("edges", schema.GraphEdge, schema.MAX_EDGES),
    ):
        items = graph.get(key) if isinstance(graph, dict) else None
        if isinstance(items, list) and len(items) <= max_items:
            for number, item in enumerate(items):
                yield from _item_problems(item, kind, ("graph", key, number))


def _item_problems(item: Any, kind: type[msgspec.Struct], path: JsonPath) -> Iterator[Problem]:
    from hutch.session.schema.problems import check_against_schema

    try:
        msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        outline = _outline(item, kind)
        if isinstance(item, dict) and "retry" in outline:
            outline["retry"] = _outline(item["retry"], schema.RetryPolicy)
        yield from check_against_schema(_schema_of(kind), outline, path) or [
            Problem(format_path(path), str(error))
        ]


@cache
def _schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return msgspec.json.schema(kind)


@cache
def _head_schema() -> dict[str, Any]:
    """Returns the schema of a flow in which steps and edges may be anything."""
    flow_schema = msgspec.json.schema(schema.FlowDocument)
    definitions = {**flow_schema["$defs"], "GraphNode": {}, "GraphEdge": {}}
    return {**flow_schema, "$defs": definitions}


def _head(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the outline of a flow, with the number of steps and edges instead of their content."""
    head: dict[str, Any] = _outline(document, schema.FlowDocument)
    for key, kind in _SECTIONS.items():
        if key in document:
            head[key] = _outline(document[key], kind)
    if isinstance(graph := document.get("graph"), dict):
        for key, max_items in (("nodes", schema.MAX_NODES), ("edges", schema.MAX_EDGES)):
            if isinstance(items := graph.get(key), list):
                head["graph"][key] = [None] * min(len(items), max_items + 1)
    return head


def _outline(value: Any, kind: type[msgspec.Struct]) -> Any:
    """Returns the fields of a struct without their content. Includes unknown fields only if the struct
    forbids them, because only then are they problems.
    """
    if not isinstance(value, dict):
        return _empty(value)
    known = kind.__struct_encode_fields__
    unknown = (name for name in value if name not in known)
    names = [name for name in known if name in value]
    if kind.__struct_config__.forbid_unknown_fields:
        names += islice(unknown, MAX_PROBLEMS + 1)
    return {name: _empty(value[name]) for name in names}


def _empty(value: Any) -> Any:
    """Empties an object or a list, and shortens a string. Returns other values unchanged."""
    if isinstance(value, dict):
        return {}
    return [] if isinstance(value, list) else value[:_MAX_TEXT_CHARS] if isinstance(value, str) else value
