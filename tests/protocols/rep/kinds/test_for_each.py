"""`for_each`: order, concurrency, retries, failures, resumption and limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.protocols.rep.flow_harness import FlowHarness
from tests.protocols.rep.flows import document, edge, step

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.kinds import for_each
from hutch.protocols.rep.kinds.registry import Registry
from hutch.protocols.rep.runtime.models import StepResult
from hutch.protocols.rep.runtime.preflight import NotRunnable, check_runnable

pytestmark = pytest.mark.anyio


def each(items: Any, kind: str = "echo", with_: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    inner = {"type": kind, "with": with_ or {}, **more.pop("inner", {})}
    return document([step("each", "for_each", {"items": items, "step": inner, **more})])


async def test_outputs_are_the_list_of_the_items_outputs_in_order() -> None:
    ir = each("$input.names", with_={"value": ["$index", "$item.name", "$input.shop"]})
    inputs = {"names": [{"name": "a"}, {"name": "$input.shop"}], "shop": "s"}
    ended = await FlowHarness().run(ir, inputs)
    # If a value in an item looks like a reference, it stays unchanged.
    assert ended.outputs == {"each": [[0, "a", "s"], [1, "$input.shop", "s"]]}
    [items] = [event for event in ended.events if event["type"] == "items"]
    assert (items["step_id"], items["count"], items["max_parallel"]) == ("each", 2, 4)
    assert (await FlowHarness().run(each([]))).outputs == {"each": []}


async def test_items_refer_to_earlier_steps_and_later_steps_to_the_list() -> None:
    inner = {"type": "echo", "with": {"value": "${item}-${step.first.x}"}, "interpolate": True}
    nodes = [
        step("first", "echo", {"value": {"x": 7, "list": [1, 2]}}),
        step("each", "for_each", {"items": "$step.first.list", "step": inner}),
        step("last", "echo", {"value": "$step.each[1]"}),
    ]
    ended = await FlowHarness().run(document(nodes, [edge("first", "each"), edge("each", "last")]))
    assert ended.outputs == {"last": "2-7"}


async def test_at_most_max_parallel_items_run_at_once() -> None:
    harness = FlowHarness()
    running = asyncio.create_task(harness.run(each(list(range(7)), "hold", max_parallel=3)))
    for index in range(7):
        await harness.until_running(f"each/{index}")
        harness.release_event(f"each/{index}").set()
    assert (await running).outputs == {"each": [f"each/{index}" for index in range(7)]}
    assert harness.max_running == 3


async def test_waiting_kinds_are_bounded_by_max_parallel_too() -> None:
    harness = FlowHarness()
    inner = document([step("in", "hold")])
    ir = each([1, 2, 3], "flow.run", {"flow": inner}, max_parallel=1)
    running = asyncio.create_task(harness.run(ir))
    for index in range(3):
        await harness.until_running(f"each/{index}/in")
        harness.release_event(f"each/{index}/in").set()
    await running
    assert harness.max_running == 1


async def test_retry_applies_to_each_item() -> None:
    harness = FlowHarness()
    ir = each([0, 2, 1], "fail", {"times": "$item"}, inner={"retry": {"max": 2, "backoff_ms": 0}})
    assert (await harness.run(ir)).outputs == {"each": [1, 3, 2]}
    assert harness.attempts == {"each/0": 1, "each/1": 3, "each/2": 2}


async def test_failed_item_fails_the_step_and_names_its_index() -> None:
    harness = FlowHarness()
    ended = await harness.run(each([0, 1, 0, 0], "fail", {"times": "$item"}, max_parallel=1))
    assert ended.status == "failed"
    error = ended.summary["error"]
    assert error["message"] == "Item 1 failed: failed on request"
    assert (error["data"]["step_id"], error["data"]["details"]["index"]) == ("each", 1)
    assert harness.attempts == {"each/0": 1, "each/1": 1}


async def test_failure_edge_continues_after_a_failed_item() -> None:
    ir = each([0, 5], "fail", {"times": "$item"})
    ir["graph"]["nodes"].append(step("alarm", "echo", {"value": "$step.each.error.details.index"}))
    ir["graph"]["edges"].append(edge("each", "alarm", "failure"))
    ended = await FlowHarness().run(ir)
    assert (ended.status, ended.outputs) == ("completed", {"alarm": 1})


async def test_finished_items_are_not_repeated_by_a_resumed_run() -> None:
    harness = FlowHarness()
    finished = {
        "each/0": StepResult(state="succeeded", output="old"),
        "each/2": StepResult(state="failed", error={"code": 2001, "message": "x", "data": {}}),
    }
    ended = await harness.run(each([1, 2, 3], with_={"value": "$item"}), finished_steps=finished)
    assert ended.outputs == {"each": ["old", 2, 3]}
    assert harness.attempts == {"each/1": 1, "each/2": 1}


async def test_number_of_items_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_each, "MAX_ITEMS", 3)
    harness = FlowHarness()
    ended = await harness.run(each("$input.items"), {"items": [0] * 4})
    assert "expected at most 3 items, got 4" in ended.summary["error"]["message"]
    assert harness.attempts == {}


async def test_value_that_is_not_a_list_fails_the_step() -> None:
    ended = await FlowHarness().run(each("$input.items"), {"items": {"a": 1}})
    assert "with.items: expected a list" in ended.summary["error"]["message"]


@pytest.mark.parametrize(
    ("with_", "expected"),
    [
        ({"items": [1]}, "graph.nodes[0].with.step: is missing"),
        ({"items": "abc", "step": {"type": "echo"}}, "graph.nodes[0].with.items: expected a list, or a"),
        ({"items": [], "step": {"type": "finish"}}, "graph.nodes[0].with.step.type: a finish cannot run"),
        ({"items": [], "step": {"type": "echo"}, "max_parallel": 65}, "graph.nodes[0].with.max_parallel: "),
        ({"items": [], "step": {"type": "echo", "id": "x"}}, "graph.nodes[0].with.step.id: "),
        (
            {"items": [], "step": {"type": "echo", "with": {"x": "$step.each"}}},
            "graph.nodes[0].with.step.with.x: $step.each: a step cannot use its own output",
        ),
        (
            {"items": "$item.x", "step": {"type": "echo", "with": {"x": "$step.nope"}}},
            'graph.nodes[0].with.step.with.x: $step.nope: there is no step "nope"',
        ),
        (
            {"items": [], "step": {"type": "flow.run", "with": {"flow": {"version": "2"}}}},
            'graph.nodes[0].with.step.with.flow.version: expected "1.0.0"',
        ),
    ],
)
def test_wrong_for_each_is_invalid(with_: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidFlow) as refused:
        parse_flow(document([step("each", "for_each", with_)]))
    assert expected in str(refused.value)


def test_inner_kind_needs_the_permissions_of_its_own() -> None:
    flow = parse_flow(each([1], "shell.run", {"command": "id"}))
    assert flow.step_kinds() == ["for_each", "shell.run"]
    registry = Registry.load({"TRACE_MIND_ALLOW_SHELL": "1"})
    with pytest.raises(NotRunnable, match=r"shell\.run is not allowed"):
        check_runnable(flow, {}, registry, allow_shell=False)
    check_runnable(flow, {}, registry, allow_shell=True)


def test_parameters_of_the_inner_step_are_checked_before_the_run() -> None:
    flow = parse_flow(each([1], "http.get", {"uri": "$item"}))
    with pytest.raises(NotRunnable) as refused:
        check_runnable(flow, {}, Registry.load({}), allow_shell=False)
    assert "graph.nodes[0].with.step.with.url: is required" in str(refused.value)
    assert "graph.nodes[0].with.step.with.uri: is unknown" in str(refused.value)
