"""Evaluates switches: selects the case for a value and the edges to take."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.protocols.rep.ir.flow import Flow, FlowEdge, FlowNode

DEFAULT = "_DEFAULT"
"""Name that the public compiler gives to the default case."""


def taken_edges(flow: Flow, node: FlowNode, key: Any) -> list[FlowEdge]:
    """Returns the edges that a switch takes for the value of its key.

    An edge with a `case` is taken in that case. An edge without a `case` is taken if `cases` or `default`
    selects its target. If neither names its target, the edge is always taken.
    """
    edges = [edge for edge in flow.outgoing(node.id) if edge.on == "success"]
    cases: dict[str, str] = node.with_.get("cases") or {}
    default = node.with_.get("default")
    case = case_of(key, {*cases, *(edge.case for edge in edges if edge.case is not None)}, default)
    directed = {*cases.values(), default}
    target = cases.get(case) if case is not None else default
    return [edge for edge in edges if _is_taken(edge, case, target, directed)]


def _is_taken(edge: FlowEdge, case: str | None, target: str | None, directed: set[str | None]) -> bool:
    if edge.case is not None:
        return edge.case == case or (case is None and edge.target == target)
    return edge.target == target or edge.target not in directed


def case_of(key: Any, cases: set[str], default: str | None) -> str | None:
    """Returns the case for a value, or None if no case matches and the default is not a case."""
    name = case_name(key)
    if name is not None and name in cases:
        return name
    if default is not None:
        return default if default in cases else None
    return DEFAULT if DEFAULT in cases else None


def case_name(key: Any) -> str | None:
    """Converts a value to a case name. Strings stay unchanged, other values become JSON."""
    if isinstance(key, str):
        return key
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    try:
        return msgspec.json.encode(key).decode()
    except (TypeError, ValueError):
        return None
