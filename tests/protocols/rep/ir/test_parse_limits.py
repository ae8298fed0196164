"""Parsing of Flow IR: nested flows, limits and fuzzing."""

from __future__ import annotations

import copy
import json
import random
import time
from typing import Any

import pytest
from tests.protocols.rep.flows import chain, compiled, document, edge, step

from hutch.problems import MAX_PROBLEMS
from hutch.protocols.rep.drawing.render import draw
from hutch.protocols.rep.ir.budget import ValidationBudget
from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.inputs import check_inputs
from hutch.protocols.rep.ir.json_bounds import MAX_VALUES
from hutch.protocols.rep.ir.parse import MAX_CASES, parse_flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.schema import MAX_EDGES, MAX_NODES


def problems(value: object) -> list[str]:
    with pytest.raises(InvalidFlow) as refused:
        parse_flow(value)
    assert refused.value.rep_code == 1003
    return [str(problem) for problem in refused.value.problems]


def switch(cases: object, edges: list[dict[str, Any]], **extra: object) -> dict[str, Any]:
    given = {"key_from": "$step.a.x", "cases": cases, **extra}
    steps = [step("a"), step("s", "switch", given), step("b"), step("c")]
    return document(steps, [edge("a", "s"), *edges])


def test_nested_flow_is_checked_with_its_own_references() -> None:
    inner = document([step("one"), step("two", with_={"x": "$step.one.y"})], chain("one", "two"))
    parse_flow(document([step("outer", "flow.run", {"flow": inner, "inputs": {}})]))
    inner["graph"]["nodes"][1]["with"]["x"] = "$step.outer.y"
    assert problems(document([step("outer", "flow.run", {"flow": inner})])) == [
        'graph.nodes[0].with.flow.graph.nodes[1].with.x: $step.outer.y: there is no step "outer"'
    ]


# --- limits ---


def test_too_many_steps_are_refused() -> None:
    found = problems(document([step(f"n{number}") for number in range(MAX_NODES + 1)]))
    assert found[0].startswith("graph.nodes: expected at most 10000 items")


def test_too_many_edges_and_cases_are_refused() -> None:
    edges = [edge("a", "b")] * (MAX_EDGES + 1)
    assert f"graph.edges: expected at most {MAX_EDGES} items, got a list" in problems(
        document([step("a"), step("b")], edges)
    )
    cases = {str(number): "b" for number in range(MAX_CASES + 1)}
    assert f"graph.nodes[1].with.cases: expected at most {MAX_CASES} cases, got {MAX_CASES + 1}" in problems(
        switch(cases, [edge("s", "b")])
    )


def test_too_many_values_are_refused() -> None:
    value = document([step("a", with_={"x": [None] * MAX_VALUES})])
    assert problems(value) == [f"has more than {MAX_VALUES} values"]


def test_flows_may_be_nested_eight_levels_deep() -> None:
    def nested(levels: int) -> dict[str, Any]:
        inner = document([step("a")])
        for _ in range(levels):
            inner = document([step("a", "flow.run", {"flow": inner, "inputs": {}})])
        return inner

    parse_flow(nested(8))
    (problem,) = problems(nested(9))
    assert problem.endswith("expected at most 8 levels of nested flows")


def test_list_of_problems_is_bounded() -> None:
    found = problems(document([{}] * 1_000, [{"from": 1}] * 1_000))
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == "there are more problems; fix these first"
    long = problems({**document([step("a")]), "flow": {"x" * 100_000 + str(at): 1 for at in range(5)}})
    assert len(long) == 3
    assert max(map(len, long)) < 500


def test_validation_stops_when_its_time_is_over() -> None:
    value = document([step(f"n{number}") for number in range(2_000)])
    with pytest.raises(InvalidFlow, match="takes more than 0 s to validate; split it into smaller flows"):
        parse_flow(value, ValidationBudget(0))
    stopped = ValidationBudget(1_000)
    stopped.stop()
    with pytest.raises(InvalidFlow, match="was stopped"):
        parse_flow(value, stopped)
    assert isinstance(parse_flow(value, ValidationBudget(1_000)), Flow)


def test_switch_with_many_cases_and_edges_is_parsed_in_time() -> None:
    cases = {f"c{number}": "end" for number in range(MAX_CASES)}
    edges = [edge("s", "end", case=f"x{number}") for number in range(14_000)]
    edges += [edge("s", "end", case=case) for case in cases]
    steps = [step("s", "switch", {"key_from": "$input.x", "cases": cases}), step("end", "finish")]
    began = time.process_time()
    parse_flow(document(steps, edges))
    assert time.process_time() - began < 1


def test_deeply_nested_value_is_refused() -> None:
    deep: Any = "end"
    for _ in range(50_000):
        deep = [deep]
    assert "is nested deeper than 100 levels" in problems(document([step("a", with_={"x": deep})]))[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, b"x", {1, 2}, "\ud800", {"\ud800": 1}])
def test_value_that_is_not_json_is_refused(value: object) -> None:
    assert problems(document([step("a", with_={"x": value})]))[0].startswith("graph.nodes[0].with.x")


def test_large_flow_with_many_references_is_parsed_in_time() -> None:
    ids = [f"n{number}" for number in range(3000)]
    steps = [
        step(name, with_={"first": "$step.n0", "last": f"$step.n{max(0, number - 1)}"} if number else {})
        for number, name in enumerate(ids)
    ]
    started = time.process_time()
    flow = parse_flow(document(steps, chain(*ids)))
    assert flow.order() == ids
    assert time.process_time() - started < 20


# --- fuzzing ---

ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "a",
    "$step.a",
    "$input.",
    "$step.read.values",
    "switch",
    "flow.run",
]
ODD_VALUES += ["list<", "\x00", "\ud800", 10**30, [], {}, [1], {"a": 1}, {"type": "string"}]
ODD_VALUES += [{"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the paths of all values inside of a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, part in inside for found in [(*path, key), *paths_in(part, (*path, key))]]


@pytest.mark.parametrize("seed", range(20))
def test_any_document_is_parsed_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        value = document([*compiled()["graph"]["nodes"], step("in", "flow.run", {"flow": compiled()})])
        value["graph"]["edges"] = compiled()["graph"]["edges"]
        for _ in range(rng.randint(1, 4)):
            *parents, last = rng.choice(paths_in(value))
            target = value
            for key in parents:
                target = target[key]
            if rng.random() < 0.2:
                del target[last]
            else:
                target[last] = copy.deepcopy(rng.choice(ODD_VALUES))
        try:
            flow = parse_flow(value)
        except InvalidFlow as error:
            json.dumps(error.details)
        else:
            assert draw(flow)
            assert isinstance(check_inputs(flow, {"endpoint": rng.choice(ODD_VALUES)}), list)
