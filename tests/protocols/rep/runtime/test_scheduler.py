"""Scheduler: order, branches, joins, failures, timeouts, cancellation and resuming."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.protocols.rep.flow_harness import FlowHarness
from tests.support.flows import chain, edge, flow, node

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.runtime.events import RunEventBuffer
from hutch.protocols.rep.runtime.models import RunSummary, StepResult
from hutch.protocols.rep.runtime.scheduler import FlowProgress


@pytest.fixture
def harness() -> FlowHarness:
    return FlowHarness()


# --- order ---


async def test_steps_follow_edges_and_resolve_references(harness: FlowHarness) -> None:
    nodes = [
        node("a", "echo", value={"n": "$input.n"}),
        node("b", "echo", value=["$step.a.n", "$.vars.a", "text"]),
    ]
    ended = await harness.run(flow(nodes, chain("a", "b")), {"n": 7})
    assert ended.outputs == {"b": [7, {"n": 7}, "text"]}
    assert ended.steps() == [("a", "started"), ("a", "succeeded"), ("b", "started"), ("b", "succeeded")]
    counts = {"completed_steps": 2, "failed_steps": 0, "skipped_steps": 0, "total_steps": 2}
    assert ended.summary == counts | {"outputs": {"b": [7, {"n": 7}, "text"]}}


async def test_branches_run_concurrently_and_a_join_waits_for_all(harness: FlowHarness) -> None:
    nodes = [
        *(node(id, "hold") for id in "abc"),
        node("join", "echo", value=["$step.a", "$step.b", "$step.c"]),
    ]
    running = asyncio.ensure_future(harness.run(flow(nodes, [edge(id, "join") for id in "abc"])))
    await harness.until_running("a", "b", "c")
    for id in "cab":
        assert harness.attempts["join"] == 0
        harness.release_event(id).set()
    assert (await running).outputs == {"join": ["a", "b", "c"]}


def test_edges_of_a_large_switch_are_decided_in_time() -> None:
    ids = [f"s{number}" for number in range(7_000)]
    nodes = [node("d", "switch", key_from="$input.x", cases={"c": "end"}), node("end", "finish")]
    nodes += [node(id, "wait", seconds=0) for id in ids]
    ir = flow(nodes, [*(edge("d", id) for id in ids), edge("d", "end", case="c")])
    progress = FlowProgress(parse_flow(ir))
    began = time.process_time()
    ready, skipped = progress.step_ended("d", StepResult(state="succeeded", output={"value": "other"}))
    assert (ready, skipped) == (ids, ["end"])
    assert time.process_time() - began < 1


async def test_concurrency_limit_is_respected(harness: FlowHarness) -> None:
    nodes = [node(f"s{number}", "hold") for number in range(10)]
    running = asyncio.ensure_future(harness.run(flow(nodes), concurrency=3))
    for number in range(10):
        await harness.until_running(f"s{number}")
        harness.release_event(f"s{number}").set()
    assert len((await running).outputs) == 10
    assert harness.max_running == 3


async def test_waiting_steps_use_no_slot(harness: FlowHarness) -> None:
    waiting = [node(f"w{number}", "wait", seconds=0.01) for number in range(5)]
    ended = await harness.run(flow([*waiting, node("work", "echo", value=1)]), concurrency=1)
    assert ended.events[5] | {"timestamp": ""} == {
        "type": "step",
        "timestamp": "",
        "state": "started",
        "step_id": "work",
        "kind": "echo",
        "attempt": 0,
    }


async def test_event_timestamps_are_rfc_3339_and_ordered(harness: FlowHarness) -> None:
    ended = await harness.run(flow([node("a", "echo"), node("b", "echo")], chain("a", "b")))
    times = [each["timestamp"] for each in ended.events]
    assert all(len(each) == 24 and each[10] == "T" and each.endswith("Z") for each in times)
    assert all(one <= other for one, other in pairwise(times))


async def test_thousand_steps_in_a_chain_and_in_a_fan(harness: FlowHarness) -> None:
    ids = [f"s{number}" for number in range(1_000)]
    nodes = [node(id, "echo", value=number) for number, id in enumerate(ids)]
    assert (await harness.run(flow(nodes, chain(*ids)))).outputs == {"s999": 999}
    fan = [*nodes, node("first", "echo"), node("last", "echo", value="$step.s999")]
    edges = [each for id in ids for each in (edge("first", id), edge(id, "last"))]
    ended = await harness.run(flow(fan, edges))
    assert (ended.outputs, ended.summary["completed_steps"]) == ({"last": 999}, 1_002)


# --- outputs ---


async def test_finish_defines_the_outputs(harness: FlowHarness) -> None:
    nodes = [node("a", "echo", value=5), node("end", "finish", outputs={"five": "$step.a", "six": 6})]
    assert (await harness.run(flow(nodes, chain("a", "end")))).outputs == {"five": 5, "six": 6}


async def test_finish_without_outputs_keeps_those_of_the_last_steps(harness: FlowHarness) -> None:
    nodes = [node("a", "echo", value=1), node("b", "echo", value=2), node("end", "finish")]
    assert (await harness.run(flow(nodes, chain("a", "b", "end")))).outputs == {"b": 2}


async def test_outputs_without_finish_are_those_of_the_last_steps(harness: FlowHarness) -> None:
    nodes = [node("a", "echo", value=1), node("b", "echo", value=2), node("c", "echo", value=3)]
    assert (await harness.run(flow(nodes, [edge("a", "b"), edge("a", "c")]))).outputs == {"b": 2, "c": 3}


async def test_too_large_output_fails_the_step(harness: FlowHarness) -> None:
    ended = await harness.run(flow([node("a", "echo", value="x" * (8 * 2**20))]))
    assert ended.error["code"] == 2001
    assert "The output has 8388610 bytes of JSON; the limit is 8388608." in ended.error["message"]


async def test_too_large_outputs_fail_the_run_with_advice(harness: FlowHarness) -> None:
    nodes = [node(id, "echo", value="x" * (5 * 2**20)) for id in "ab"]
    ended = await harness.run(flow(nodes))
    assert (ended.error["code"], ended.summary["completed_steps"]) == (2001, 2)
    assert "Select the ones that you need with the `outputs` of a finish step." in ended.error["message"]


# --- switches ---


def switched(key: Any, **params: Any) -> dict[str, Any]:
    nodes = [
        node("decide", "echo", value={"action": key}),
        node("way", "switch", key_from="$.vars.decide.action", **params),
        node("left", "echo", value="left"),
        node("right", "echo", value="right"),
        node("after", "echo", value="$step.way"),
    ]
    edges = [
        edge("decide", "way"),
        edge("way", "left", case="L"),
        edge("way", "right", case="_DEFAULT"),
        edge("left", "after"),
        edge("right", "after"),
    ]
    return flow(nodes, edges)


@pytest.mark.parametrize(
    ("key", "taken", "skipped"), [("L", "left", "right"), ("else", "right", "left"), (None, "right", "left")]
)
async def test_switch_takes_one_branch_and_the_join_ignores_the_other(
    harness: FlowHarness, key: Any, taken: str, skipped: str
) -> None:
    ended = await harness.run(switched(key, cases={"L": "left", "_DEFAULT": "right"}))
    case = "L" if taken == "left" else "_DEFAULT"
    assert ended.outputs == {"after": {"value": key, "case": case, "next": [taken]}}
    assert harness.attempts[skipped] == 0
    assert [each["step_id"] for each in ended.events if each["type"] == "skipped"] == [skipped]
    assert ended.summary["skipped_steps"] == 1


async def test_switch_without_matching_case_fails_with_value_and_cases(harness: FlowHarness) -> None:
    nodes = [
        node("way", "switch", key_from="$input.k", cases={"A": "a"}),
        node("a", "echo"),
    ]
    ended = await harness.run(flow(nodes, [edge("way", "a", case="A")]), {"k": "B"})
    assert ended.error["message"] == "There is no case for 'B', and no default; the cases are A."
    assert ended.error["data"]["step_id"] == "way"


async def test_all_steps_behind_an_untaken_branch_are_skipped(harness: FlowHarness) -> None:
    nodes = [
        node("way", "switch", key_from="$input.k", cases={"A": "a", "B": "b"}),
        *(node(id, "echo", value=id) for id in ("a", "b", "b2", "b3", "both")),
    ]
    edges = [edge("way", "a", case="A"), edge("way", "b", case="B"), *chain("b", "b2", "b3")]
    ended = await harness.run(flow(nodes, [*edges, edge("b3", "both"), edge("a", "both")]), {"k": "A"})
    assert (ended.outputs, ended.summary["skipped_steps"]) == ({"both": "both"}, 3)


# --- failures ---


async def test_failing_step_fails_the_run_and_stops_the_others(harness: FlowHarness) -> None:
    nodes = [node("bad", "fail"), node("other", "hold"), node("after", "echo")]
    ended = await harness.run(flow(nodes, chain("bad", "after")))
    data = {"step_id": "bad", "attempt": 0, "retriable": True, "details": {"a": 1}}
    assert ended.error == {"code": 2001, "message": "failed on request", "data": data}
    assert harness.cancelled in ([], ["other"])
    assert harness.running == set()
    assert (harness.attempts["after"], ended.summary["failed_steps"]) == (0, 1)
    assert "outputs" not in ended.summary


async def test_failure_edge_handles_the_error(harness: FlowHarness) -> None:
    nodes = [
        node("bad", "fail", retries=1),
        node("fine", "echo", value="not this way"),
        node("mend", "echo", value=["$step.bad.error.message", "$step.bad.error.details.a"]),
    ]
    ended = await harness.run(flow(nodes, [edge("bad", "fine"), edge("bad", "mend", "failure")]))
    assert ended.outputs == {"mend": ["failed on request", 1]}
    assert (ended.summary["failed_steps"], ended.summary["completed_steps"], harness.attempts["bad"]) == (
        1,
        1,
        2,
    )
    assert harness.attempts["fine"] == 0


async def test_failure_edge_of_a_successful_step_is_not_taken(harness: FlowHarness) -> None:
    nodes = [node("good", "echo", value=1), node("mend", "echo"), node("next", "echo", value=2)]
    ended = await harness.run(flow(nodes, [edge("good", "mend", "failure"), edge("good", "next")]))
    assert (ended.outputs, harness.attempts["mend"]) == ({"next": 2}, 0)


# --- timeouts ---


async def test_step_timeout_cancels_and_retries(harness: FlowHarness) -> None:
    ended = await harness.run(flow([node("slow", "hold", timeout_ms=20, retries=1)]))
    assert ended.error["message"] == "Step slow took longer than its 20 ms."
    data = ended.error["data"]
    assert (data["cause"], data["attempt"], data["details"]) == ("Timeout", 1, {"timeout_ms": 20})
    assert harness.cancelled == ["slow", "slow"]


async def test_flow_timeout_ends_with_3001(harness: FlowHarness) -> None:
    ended = await harness.run(flow([node("slow", "hold")], timeout_ms=20))
    assert (ended.error["code"], ended.error["data"]["cause"]) == (3001, "Timeout")
    assert ended.error["message"] == "The flow tested took longer than its 20 ms."
    assert harness.cancelled == ["slow"]


# --- cancellation ---


async def test_cancel_reaches_every_step(harness: FlowHarness) -> None:
    run = harness.flow_run(flow([node(id, "hold") for id in "abc"]))
    running = asyncio.ensure_future(run.run())
    await harness.until_running("a", "b", "c")
    run.cancel()
    summary = await running
    assert (summary.cancelled, sorted(harness.cancelled)) == (True, ["a", "b", "c"])
    assert summary.error is not None
    assert summary.error["data"]["cause"] == "Cancelled"


async def test_cancelled_caller_leaves_no_step_behind(harness: FlowHarness) -> None:
    running = asyncio.ensure_future(harness.run(flow([node("a", "hold")])))
    await harness.until_running("a")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert harness.cancelled == ["a"]


# --- sub-flows ---


async def test_nested_flow_returns_its_outputs(harness: FlowHarness) -> None:
    inner = flow([node("x", "echo", value="$input.n")], inputs_schema={"n": {"type": "int"}})
    nodes = [node("sub", "flow.run", flow=inner, inputs={"n": "$input.m"})]
    ended = await harness.run(flow(nodes), {"m": 3})
    assert ended.outputs == {"sub": {"x": 3}}
    assert ("sub/x", "succeeded") in ended.steps()


async def test_nested_flows_share_the_slots(harness: FlowHarness) -> None:
    inner = flow([node(f"s{number}", "hold") for number in range(4)])
    nodes = [node("one", "flow.run", flow=inner), node("two", "flow.run", flow=inner)]
    running = asyncio.ensure_future(harness.run(flow(nodes), concurrency=2))
    for id in [f"{outer}/s{number}" for outer in ("one", "two") for number in range(4)]:
        await harness.until_running(id)
        harness.release_event(id).set()
    await running
    assert harness.max_running == 2


async def test_failing_nested_flow_fails_its_step(harness: FlowHarness) -> None:
    ended = await harness.run(flow([node("sub", "flow.run", flow=flow([node("x", "fail")], name="inner"))]))
    assert ended.error["message"] == "Flow inner failed: failed on request"
    assert ended.error["data"]["step_id"] == "sub"
    assert ended.error["data"]["details"]["error"]["data"]["step_id"] == "sub/x"


async def test_inputs_of_a_nested_flow_are_checked(harness: FlowHarness) -> None:
    inner = flow([node("x", "echo")], inputs_schema={"n": {"type": "int"}})
    ended = await harness.run(flow([node("sub", "flow.run", flow=inner, inputs={"n": "three"})]))
    assert "inputs.n" in ended.error["message"]


async def test_nested_flow_by_name_and_by_file(harness: FlowHarness, tmp_path: Path) -> None:
    import json

    (tmp_path / "inner.json").write_text(json.dumps(flow([node("x", "echo", value="file")])))
    nodes = [node("a", "flow.run", flow="named"), node("b", "flow.run", flow="inner.json")]
    flows = {"named": flow([node("x", "echo", value="name")])}
    ended = await harness.run(flow(nodes), flows=flows, folder=tmp_path)
    assert ended.outputs == {"a": {"x": "name"}, "b": {"x": "file"}}


async def test_recursive_flow_is_limited_in_depth(harness: FlowHarness) -> None:
    flows = {"again": flow([node("x", "flow.run", flow="again")])}
    ended = await harness.run(flow([node("start", "flow.run", flow="again")]), flows=flows)
    assert "8 levels deep" in ended.error["message"]


async def test_files_are_refused_without_a_folder(harness: FlowHarness) -> None:
    ended = await harness.run(flow([node("a", "flow.run", flow="/etc/passwd")]))
    assert ended.error["message"] == "There is no flow '/etc/passwd'; known flows: none."


# --- resuming ---


class MemoryJournal:
    """A journal in memory. Tests can delay its writes."""

    def __init__(self) -> None:
        self.results: dict[str, StepResult] = {}
        self.writable = asyncio.Event()
        self.writable.set()
        self.write_requested = asyncio.Event()
        self._changed = asyncio.Condition()

    async def step_finished(self, run_id: str, step_id: str, result: StepResult, record: Any) -> None:
        self.write_requested.set()
        await self.writable.wait()
        async with self._changed:
            self.results[step_id] = result
            self._changed.notify_all()

    async def until_written(self, step_id: str) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: step_id in self.results)

    def add_event(self, run_id: str, event: Mapping[str, Any]) -> None:
        pass

    async def run_finished(self, run_id: str, summary: RunSummary) -> None:
        pass


async def test_next_step_starts_only_after_the_result_is_stored(harness: FlowHarness) -> None:
    journal = MemoryJournal()
    journal.writable.clear()
    nodes = [node("a", "echo", value=1), node("b", "echo", value=2)]
    events = RunEventBuffer()
    running = asyncio.ensure_future(harness.run(flow(nodes, chain("a", "b")), journal=journal, events=events))
    await journal.write_requested.wait()
    assert harness.attempts == {"a": 1}
    journal.writable.set()
    await running
    assert {id: each.output for id, each in journal.results.items()} == {"a": 1, "b": 2}


async def test_finished_steps_are_not_repeated(harness: FlowHarness) -> None:
    nodes = [
        node("a", "echo", value=1),
        node("way", "switch", key_from="$step.a", cases={"1": "b", "2": "c"}),
        node("b", "hold"),
        node("c", "echo"),
        node("bad", "fail"),
        node("mend", "echo", value="$step.bad.error.message"),
        node("last", "finish", outputs=["$step.a", "$step.b", "$step.mend"]),
    ]
    edges = [
        edge("a", "way"),
        edge("way", "b", case="1"),
        edge("way", "c", case="2"),
        edge("b", "last"),
        edge("bad", "mend", "failure"),
        edge("mend", "last"),
    ]
    document = flow(nodes, edges)
    journal = MemoryJournal()
    first = harness.flow_run(document, journal=journal)
    running = asyncio.ensure_future(first.run())
    await harness.until_running("b")
    await journal.until_written("mend")
    running.cancel()
    await asyncio.wait((running,))
    assert set(journal.results) == {"a", "way", "bad", "mend"}
    harness.release_event("b").set()
    ended = await harness.run(document, finished_steps=journal.results)
    assert ended.outputs == [1, "b", "failed on request"]
    assert (harness.attempts["a"], harness.attempts["b"], harness.attempts["bad"]) == (1, 2, 1)
    assert ended.summary["completed_steps"] == 5


async def test_finished_steps_of_nested_flows_are_not_repeated(harness: FlowHarness) -> None:
    inmost = flow([node("x", "echo", value=1), node("y", "hold")], chain("x", "y"))
    inner = flow([node("a", "echo"), node("deep", "flow.run", flow=inmost)], chain("a", "deep"))
    document = flow([node("sub", "flow.run", flow=inner), node("b", "echo")], chain("sub", "b"))
    journal = MemoryJournal()
    running = asyncio.ensure_future(harness.run(document, journal=journal))
    await harness.until_running("sub/deep/y")
    running.cancel()
    await asyncio.wait((running,))
    assert set(journal.results) == {"sub/a", "sub/deep/x"}
    harness.release_event("sub/deep/y").set()
    ended = await harness.run(document, finished_steps=journal.results, journal=journal)
    assert ended.status == "completed"
    assert harness.attempts == {"sub/a": 1, "sub/deep/x": 1, "sub/deep/y": 2, "b": 1}
    assert set(journal.results) == {"sub/a", "sub/deep/x", "sub/deep/y", "sub/deep", "sub", "b"}


async def test_retry_of_a_nested_flow_starts_over(harness: FlowHarness) -> None:
    inner = flow([node("a", "echo"), node("bad", "fail")], chain("a", "bad"))
    document = flow([node("sub", "flow.run", retries=2, flow=inner)])
    journal = MemoryJournal()
    assert (await harness.run(document, journal=journal)).status == "failed"
    assert harness.attempts == {"sub/a": 3, "sub/bad": 3}
    await harness.run(document, finished_steps=journal.results)
    assert harness.attempts == {"sub/a": 5, "sub/bad": 6}


async def test_step_that_failed_the_run_is_retried_on_resume(harness: FlowHarness) -> None:
    journal = MemoryJournal()
    document = flow([node("a", "echo", value=1), node("bad", "fail")], chain("a", "bad"))
    assert (await harness.run(document, journal=journal)).status == "failed"
    assert (await harness.run(document, finished_steps=journal.results)).status == "failed"
    assert harness.attempts == {"a": 1, "bad": 2}


async def test_journal_write_error_ends_the_run_with_3002(harness: FlowHarness) -> None:
    class Broken(MemoryJournal):
        async def step_finished(self, run_id: str, step_id: str, result: StepResult, record: Any) -> None:
            raise OSError("the disk is full")

    ended = await harness.run(flow([node("a", "echo"), node("b", "echo")], chain("a", "b")), journal=Broken())
    assert (ended.error["code"], ended.error["data"]["cause"]) == (3002, "OSError")
    assert "the disk is full" in ended.error["message"]
    assert harness.attempts == {"a": 1}
