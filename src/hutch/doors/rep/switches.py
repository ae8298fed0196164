"""Which way a switch goes: the cases that it has, and the edges that are taken for a value."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.doors.rep.flow import Edge, Flow, Node

DEFAULT = "_DEFAULT"
"""The case for whatever has no other, as the public compiler calls it."""


def chosen(flow: Flow, node: Node, key: Any) -> list[Edge]:
    """The edges that a switch takes for the value of its key.

    One with a `case` is taken if that is the case. One without is taken if `cases` or `default` leads to its
    end, or whatever the value is if neither ever leads there.
    """
    edges = [edge for edge in flow.outgoing(node.id) if edge.on == "success"]
    cases: dict[str, str] = node.with_.get("cases") or {}
    default = node.with_.get("default")
    case = case_of(key, {*cases, *(edge.case for edge in edges if edge.case is not None)}, default)
    directed = {*cases.values(), default}
    target = cases.get(case) if case is not None else default
    return [edge for edge in edges if _is_taken(edge, case, target, directed)]


def _is_taken(edge: Edge, case: str | None, target: str | None, directed: set[str | None]) -> bool:
    if edge.case is not None:
        return edge.case == case or (case is None and edge.target == target)
    return edge.target == target or edge.target not in directed


def case_of(key: Any, cases: set[str], default: str | None) -> str | None:
    """The name of the case for a value; None if there is none, and `default` is no case's name."""
    name = case_name(key)
    if name is not None and name in cases:
        return name
    if default is not None:
        return default if default in cases else None
    return DEFAULT if DEFAULT in cases else None


def case_name(key: Any) -> str | None:
    """What a value is called among the cases: a string as it is, anything else as JSON writes it."""
    if isinstance(key, str):
        return key
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    try:
        return msgspec.json.encode(key).decode()
    except (TypeError, ValueError):
        return None
