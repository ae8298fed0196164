"""Switches follow the edges of the matching case. If no case matches, they follow the default edges."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocols.rep.flows import compiled, document, edge, step

from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.switch import case_name, taken_edges


def taken(flow: Flow, key: object, switch: str = "s") -> list[str]:
    return [edge.target for edge in taken_edges(flow, flow.nodes[switch], key)]


def flow_of(cases: dict[str, str] | None, edges: list[dict[str, Any]], default: str | None = None) -> Flow:
    with_ = {"key_from": "$step.a", "cases": cases, "default": default}
    steps = [step("a"), step("s", "switch", with_), step("b"), step("c"), step("d")]
    return parse_flow(document(steps, [edge("a", "s"), *edges]))


def test_switch_of_the_public_compiler() -> None:
    flow = parse_flow(compiled())
    assert taken(flow, "ok", "when_0") == ["write"]
    assert taken(flow, "bad", "when_0") == ["emit_1"]
    assert taken(flow, None, "when_0") == ["emit_1"]


@pytest.mark.parametrize("labelled", [True, False])
def test_cases_on_edges_are_optional(labelled: bool) -> None:
    def to(target: str, case: str) -> dict[str, Any]:
        return edge("s", target, case=case if labelled else None)

    flow = flow_of({"x": "b", "y": "c"}, [to("b", "x"), to("c", "y")])
    assert (taken(flow, "x"), taken(flow, "y"), taken(flow, "z")) == (["b"], ["c"], [])


def test_default_names_a_case_or_a_step() -> None:
    edges = [edge("s", "b", case="x"), edge("s", "c", case="y")]
    assert taken(flow_of({"x": "b", "y": "c"}, edges, "y"), "?") == ["c"]
    edges = [edge("s", "b", case="x"), edge("s", "c")]
    by_step = flow_of({"x": "b"}, edges, "c")
    assert (taken(by_step, "?"), taken(by_step, "x")) == (["c"], ["b"])


def test_edge_without_a_case_is_always_taken_and_failure_edge_never() -> None:
    edges = [edge("s", "b", case="x"), edge("s", "c"), edge("s", "d", "failure")]
    flow = flow_of({"x": "b"}, edges)
    assert (taken(flow, "x"), taken(flow, "y")) == (["b", "c"], ["c"])


def test_one_case_may_lead_to_many_steps() -> None:
    flow = flow_of({"x": "b"}, [edge("s", "b", case="x"), edge("s", "c", case="x"), edge("s", "d", case="y")])
    assert (taken(flow, "x"), taken(flow, "y")) == (["b", "c"], ["d"])


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("a", "a"),
        (True, "true"),
        (None, "null"),
        (3, "3"),
        (3.0, "3"),
        (1.5, "1.5"),
        ([1], "[1]"),
    ],
)
def test_case_name_of_a_value_is_its_json(key: object, name: str) -> None:
    assert case_name(key) == name
