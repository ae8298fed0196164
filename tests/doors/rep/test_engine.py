"""The engine: order, branches, joins, failures, retries, time, cancellation, going on after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.doors.rep.boards import Board
from tests.flows import chain, edge, flow, node

from hutch.doors.rep.events import Events
from hutch.doors.rep.steps import StepResult, Summary


@pytest.fixture
def board() -> Board:
    return Board()


# --- order ---


async def test_steps_follow_their_edges_and_see_what_came_before(board: Board) -> None:
    nodes = [
        node("a", "echo", value={"n": "$input.n"}),
        node("b", "echo", value=["$step.a.n", "$.vars.a", "text"]),
    ]
    ended = await board.run(flow(nodes, chain("a", "b")), {"n": 7})
    assert ended.outputs == {"b": [7, {"n": 7}, "text"]}
    assert ended.steps() == [("a", "started"), ("a", "succeeded"), ("b", "started"), ("b", "succeeded")]
    counts = {"completed_steps": 2, "failed_steps": 0, "skipped_steps": 0, "total_steps": 2}
    assert ended.summary == counts | {"outputs": {"b": [7, {"n": 7}, "text"]}}


async def test_branches_run_at_once_and_a_join_waits_for_all(board: Board) -> None:
    nodes = [
        *(node(id, "hold") for id in "abc"),
        node("join", "echo", value=["$step.a", "$step.b", "$step.c"]),
    ]
    running = asyncio.ensure_future(board.run(flow(nodes, [edge(id, "join") for id in "abc"])))
    await board.until_running("a", "b", "c")
    for id in "cab":
        assert board.attempts["join"] == 0
        board.gate(id).set()
    assert (await running).outputs == {"join": ["a", "b", "c"]}


async def test_no_more_steps_run_at_once_than_are_allowed(board: Board) -> None:
    nodes = [node(f"s{number}", "hold") for number in range(10)]
    running = asyncio.ensure_future(board.run(flow(nodes), concurrency=3))
    for number in range(10):
        await board.until_running(f"s{number}")
        board.gate(f"s{number}").set()
    assert len((await running).outputs) == 10
    assert board.most_running == 3


async def test_steps_that_only_wait_take_no_place(board: Board) -> None:
    waiting = [node(f"w{number}", "wait", seconds=0.01) for number in range(5)]
    ended = await board.run(flow([*waiting, node("work", "echo", value=1)]), concurrency=1)
    assert ended.events[5] | {"timestamp": ""} == {
        "type": "step",
        "timestamp": "",
        "state": "started",
        "step_id": "work",
        "kind": "echo",
        "attempt": 0,
    }


async def test_events_have_times_of_rfc_3339_in_order(board: Board) -> None:
    ended = await board.run(flow([node("a", "echo"), node("b", "echo")], chain("a", "b")))
    times = [each["timestamp"] for each in ended.events]
    assert all(len(each) == 24 and each[10] == "T" and each.endswith("Z") for each in times)
    assert all(one <= other for one, other in pairwise(times))


async def test_a_thousand_steps_in_a_chain_and_in_a_fan(board: Board) -> None:
    ids = [f"s{number}" for number in range(1_000)]
    nodes = [node(id, "echo", value=number) for number, id in enumerate(ids)]
    assert (await board.run(flow(nodes, chain(*ids)))).outputs == {"s999": 999}
    fan = [*nodes, node("first", "echo"), node("last", "echo", value="$step.s999")]
    edges = [each for id in ids for each in (edge("first", id), edge(id, "last"))]
    ended = await board.run(flow(fan, edges))
    assert (ended.outputs, ended.summary["completed_steps"]) == ({"last": 999}, 1_002)


# --- outputs ---


async def test_outputs_are_those_of_finish(board: Board) -> None:
    nodes = [node("a", "echo", value=5), node("end", "finish", outputs={"five": "$step.a", "six": 6})]
    assert (await board.run(flow(nodes, chain("a", "end")))).outputs == {"five": 5, "six": 6}


async def test_finish_that_names_none_leaves_those_of_the_last_steps(board: Board) -> None:
    nodes = [node("a", "echo", value=1), node("b", "echo", value=2), node("end", "finish")]
    assert (await board.run(flow(nodes, chain("a", "b", "end")))).outputs == {"b": 2}


async def test_outputs_without_finish_are_those_of_steps_that_nothing_follows(board: Board) -> None:
    nodes = [node("a", "echo", value=1), node("b", "echo", value=2), node("c", "echo", value=3)]
    assert (await board.run(flow(nodes, [edge("a", "b"), edge("a", "c")]))).outputs == {"b": 2, "c": 3}


async def test_output_that_is_too_large_fails_its_step(board: Board) -> None:
    ended = await board.run(flow([node("a", "echo", value="x" * (8 * 2**20))]))
    assert ended.error["code"] == 2001
    assert "The output has 8388610 bytes of JSON; the most is 8388608." in ended.error["message"]


async def test_outputs_that_are_too_large_together_fail_the_run_with_advice(board: Board) -> None:
    nodes = [node(id, "echo", value="x" * (5 * 2**20)) for id in "ab"]
    ended = await board.run(flow(nodes))
    assert (ended.error["code"], ended.summary["completed_steps"]) == (2001, 2)
    assert "Name those that are wanted in the `outputs` of a finish step." in ended.error["message"]


# --- switches ---


def switched(key: Any, **given: Any) -> dict[str, Any]:
    nodes = [
        node("decide", "echo", value={"action": key}),
        node("way", "switch", key_from="$.vars.decide.action", **given),
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
async def test_switch_goes_one_way_and_what_joins_does_not_wait_for_the_other(
    board: Board, key: Any, taken: str, skipped: str
) -> None:
    ended = await board.run(switched(key, cases={"L": "left", "_DEFAULT": "right"}))
    case = "L" if taken == "left" else "_DEFAULT"
    assert ended.outputs == {"after": {"value": key, "case": case, "next": [taken]}}
    assert board.attempts[skipped] == 0
    assert [each["step_id"] for each in ended.events if each["type"] == "skipped"] == [skipped]
    assert ended.summary["skipped_steps"] == 1


async def test_switch_without_a_case_for_a_value_fails_and_names_both(board: Board) -> None:
    nodes = [
        node("way", "switch", key_from="$input.k", cases={"A": "a"}),
        node("a", "echo"),
    ]
    ended = await board.run(flow(nodes, [edge("way", "a", case="A")]), {"k": "B"})
    assert ended.error["message"] == "There is no case for 'B', and no default; the cases are A."
    assert ended.error["data"]["step_id"] == "way"


async def test_everything_behind_a_way_that_is_not_taken_is_skipped(board: Board) -> None:
    nodes = [
        node("way", "switch", key_from="$input.k", cases={"A": "a", "B": "b"}),
        *(node(id, "echo", value=id) for id in ("a", "b", "b2", "b3", "both")),
    ]
    edges = [edge("way", "a", case="A"), edge("way", "b", case="B"), *chain("b", "b2", "b3")]
    ended = await board.run(flow(nodes, [*edges, edge("b3", "both"), edge("a", "both")]), {"k": "A"})
    assert (ended.outputs, ended.summary["skipped_steps"]) == ({"both": "both"}, 3)


# --- failures ---


async def test_failing_step_fails_the_run_and_stops_the_others(board: Board) -> None:
    nodes = [node("bad", "fail"), node("other", "hold"), node("after", "echo")]
    ended = await board.run(flow(nodes, chain("bad", "after")))
    data = {"step_id": "bad", "attempt": 0, "retriable": True, "details": {"a": 1}}
    assert ended.error == {"code": 2001, "message": "as it was told to", "data": data}
    assert board.cancelled in ([], ["other"])
    assert board.running == set()
    assert (board.attempts["after"], ended.summary["failed_steps"]) == (0, 1)
    assert "outputs" not in ended.summary


async def test_failure_edge_takes_over_and_knows_why(board: Board) -> None:
    nodes = [
        node("bad", "fail", retries=1),
        node("fine", "echo", value="not this way"),
        node("mend", "echo", value=["$step.bad.error.message", "$step.bad.error.details.a"]),
    ]
    ended = await board.run(flow(nodes, [edge("bad", "fine"), edge("bad", "mend", "failure")]))
    assert ended.outputs == {"mend": ["as it was told to", 1]}
    assert (ended.summary["failed_steps"], ended.summary["completed_steps"], board.attempts["bad"]) == (
        1,
        1,
        2,
    )
    assert board.attempts["fine"] == 0


async def test_failure_edge_of_a_step_that_succeeds_is_not_taken(board: Board) -> None:
    nodes = [node("good", "echo", value=1), node("mend", "echo"), node("next", "echo", value=2)]
    ended = await board.run(flow(nodes, [edge("good", "mend", "failure"), edge("good", "next")]))
    assert (ended.outputs, board.attempts["mend"]) == ({"next": 2}, 0)


async def test_reference_that_leads_nowhere_fails_without_a_retry(board: Board) -> None:
    nodes = [node("a", "echo", value={"x": 1}), node("b", "echo", retries=5, value="$step.a.y")]
    ended = await board.run(flow(nodes, chain("a", "b")))
    assert "$step.a.y" in ended.error["message"]
    assert ended.error["data"]["retriable"] is False
    assert [each for each in ended.steps() if each[1] == "started"] == [("a", "started"), ("b", "started")]


# --- retries ---


async def test_retries_are_counted_and_the_last_attempt_is_told(board: Board) -> None:
    ended = await board.run(flow([node("bad", "fail", retries=3, backoff_ms=1)]))
    assert (board.attempts["bad"], ended.error["data"]["attempt"]) == (4, 3)
    assert [each["attempt"] for each in ended.events if each.get("state") == "started"] == [0, 1, 2, 3]
    assert ended.steps().count(("bad", "failed")) == 1


async def test_step_that_succeeds_at_last_has_succeeded(board: Board) -> None:
    ended = await board.run(flow([node("a", "fail", retries=5, times=2)]))
    assert ended.outputs == {"a": 3}
    assert ended.logs() == [
        "attempt 1 failed: as it was told to",
        "trying again",
        "attempt 2 failed: as it was told to",
        "trying again",
    ]


async def test_what_no_retry_mends_is_not_tried_again(board: Board) -> None:
    await board.run(flow([node("bad", "fail", retries=3, retriable=False)]))
    assert board.attempts["bad"] == 1


async def test_step_that_waits_for_its_retry_keeps_no_place(board: Board) -> None:
    nodes = [node("bad", "fail", retries=1, backoff_ms=60_000), node("other", "hold")]
    run = board.flow_run(flow(nodes), concurrency=1)
    running = asyncio.ensure_future(run.run())
    await board.until_running("other")
    assert board.attempts["bad"] == 1
    run.cancel()
    assert (await running).cancelled


# --- time ---


async def test_step_that_takes_too_long_is_cancelled_and_tried_again(board: Board) -> None:
    ended = await board.run(flow([node("slow", "hold", timeout_ms=20, retries=1)]))
    assert ended.error["message"] == "Step slow took longer than its 20 ms."
    data = ended.error["data"]
    assert (data["cause"], data["attempt"], data["details"]) == ("Timeout", 1, {"timeout_ms": 20})
    assert board.cancelled == ["slow", "slow"]


async def test_flow_that_takes_too_long_ends_with_3001(board: Board) -> None:
    ended = await board.run(flow([node("slow", "hold")], timeout_ms=20))
    assert (ended.error["code"], ended.error["data"]["cause"]) == (3001, "Timeout")
    assert ended.error["message"] == "The flow tested took longer than its 20 ms."
    assert board.cancelled == ["slow"]


# --- cancellation ---


async def test_cancelling_reaches_every_step(board: Board) -> None:
    run = board.flow_run(flow([node(id, "hold") for id in "abc"]))
    running = asyncio.ensure_future(run.run())
    await board.until_running("a", "b", "c")
    run.cancel()
    summary = await running
    assert (summary.cancelled, sorted(board.cancelled)) == (True, ["a", "b", "c"])
    assert summary.error is not None
    assert summary.error["data"]["cause"] == "Cancelled"


async def test_run_whose_caller_is_cancelled_leaves_no_step_behind(board: Board) -> None:
    running = asyncio.ensure_future(board.run(flow([node("a", "hold")])))
    await board.until_running("a")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert board.cancelled == ["a"]


# --- sub-flows ---


async def test_flow_within_a_flow_gives_its_outputs(board: Board) -> None:
    inner = flow([node("x", "echo", value="$input.n")], inputs_schema={"n": {"type": "int"}})
    nodes = [node("sub", "flow.run", flow=inner, inputs={"n": "$input.m"})]
    ended = await board.run(flow(nodes), {"m": 3})
    assert ended.outputs == {"sub": {"x": 3}}
    assert ("sub/x", "succeeded") in ended.steps()


async def test_flows_within_flows_share_the_places(board: Board) -> None:
    inner = flow([node(f"s{number}", "hold") for number in range(4)])
    nodes = [node("one", "flow.run", flow=inner), node("two", "flow.run", flow=inner)]
    running = asyncio.ensure_future(board.run(flow(nodes), concurrency=2))
    for id in [f"{outer}/s{number}" for outer in ("one", "two") for number in range(4)]:
        await board.until_running(id)
        board.gate(id).set()
    await running
    assert board.most_running == 2


async def test_failing_flow_within_a_flow_fails_its_step(board: Board) -> None:
    ended = await board.run(flow([node("sub", "flow.run", flow=flow([node("x", "fail")], name="inner"))]))
    assert ended.error["message"] == "Flow inner failed: as it was told to"
    assert ended.error["data"]["step_id"] == "sub"
    assert ended.error["data"]["details"]["error"]["data"]["step_id"] == "sub/x"


async def test_inputs_of_a_flow_within_a_flow_are_checked(board: Board) -> None:
    inner = flow([node("x", "echo")], inputs_schema={"n": {"type": "int"}})
    ended = await board.run(flow([node("sub", "flow.run", flow=inner, inputs={"n": "three"})]))
    assert "inputs.n" in ended.error["message"]


async def test_flow_by_name_and_in_a_file(board: Board, tmp_path: Path) -> None:
    import json

    (tmp_path / "inner.json").write_text(json.dumps(flow([node("x", "echo", value="file")])))
    nodes = [node("a", "flow.run", flow="named"), node("b", "flow.run", flow="inner.json")]
    flows = {"named": flow([node("x", "echo", value="name")])}
    ended = await board.run(flow(nodes), flows=flows, folder=tmp_path)
    assert ended.outputs == {"a": {"x": "name"}, "b": {"x": "file"}}


async def test_flow_that_runs_itself_ends(board: Board) -> None:
    flows = {"again": flow([node("x", "flow.run", flow="again")])}
    ended = await board.run(flow([node("start", "flow.run", flow="again")]), flows=flows)
    assert "8 levels deep" in ended.error["message"]


async def test_files_are_refused_where_none_may_be_named(board: Board) -> None:
    ended = await board.run(flow([node("a", "flow.run", flow="/etc/passwd")]))
    assert ended.error["message"] == "There is no flow '/etc/passwd'; there is none."


# --- going on ---


class Written:
    """A journal in memory, which can be held up."""

    def __init__(self) -> None:
        self.results: dict[str, StepResult] = {}
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()
        self._written = asyncio.Condition()

    async def step_finished(self, run_id: str, step_id: str, result: StepResult) -> None:
        self.asked.set()
        await self.open.wait()
        async with self._written:
            self.results[step_id] = result
            self._written.notify_all()

    async def until_written(self, step_id: str) -> None:
        async with asyncio.timeout(30), self._written:
            await self._written.wait_for(lambda: step_id in self.results)

    def event(self, run_id: str, event: Mapping[str, Any]) -> None:
        pass

    async def finished(self, run_id: str, summary: Summary) -> None:
        pass


async def test_what_follows_begins_only_when_a_step_is_written_down(board: Board) -> None:
    journal = Written()
    journal.open.clear()
    nodes = [node("a", "echo", value=1), node("b", "echo", value=2)]
    events = Events()
    running = asyncio.ensure_future(board.run(flow(nodes, chain("a", "b")), journal=journal, events=events))
    await journal.asked.wait()
    assert board.attempts == {"a": 1}
    journal.open.set()
    await running
    assert {id: each.output for id, each in journal.results.items()} == {"a": 1, "b": 2}


async def test_finished_steps_are_not_done_again(board: Board) -> None:
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
    journal = Written()
    first = board.flow_run(document, journal=journal)
    running = asyncio.ensure_future(first.run())
    await board.until_running("b")
    await journal.until_written("mend")
    running.cancel()
    await asyncio.wait((running,))
    assert set(journal.results) == {"a", "way", "bad", "mend"}
    board.gate("b").set()
    ended = await board.run(document, finished=journal.results)
    assert ended.outputs == [1, "b", "as it was told to"]
    assert (board.attempts["a"], board.attempts["b"], board.attempts["bad"]) == (1, 2, 1)
    assert ended.summary["completed_steps"] == 5


async def test_finished_steps_of_flows_in_flows_are_not_done_again(board: Board) -> None:
    inmost = flow([node("x", "echo", value=1), node("y", "hold")], chain("x", "y"))
    inner = flow([node("a", "echo"), node("deep", "flow.run", flow=inmost)], chain("a", "deep"))
    document = flow([node("sub", "flow.run", flow=inner), node("b", "echo")], chain("sub", "b"))
    journal = Written()
    running = asyncio.ensure_future(board.run(document, journal=journal))
    await board.until_running("sub/deep/y")
    running.cancel()
    await asyncio.wait((running,))
    assert set(journal.results) == {"sub/a", "sub/deep/x"}
    board.gate("sub/deep/y").set()
    ended = await board.run(document, finished=journal.results, journal=journal)
    assert ended.status == "completed"
    assert board.attempts == {"sub/a": 1, "sub/deep/x": 1, "sub/deep/y": 2, "b": 1}
    assert set(journal.results) == {"sub/a", "sub/deep/x", "sub/deep/y", "sub/deep", "sub", "b"}


async def test_retry_of_a_flow_in_a_flow_begins_it_anew(board: Board) -> None:
    inner = flow([node("a", "echo"), node("bad", "fail")], chain("a", "bad"))
    document = flow([node("sub", "flow.run", retries=2, flow=inner)])
    journal = Written()
    assert (await board.run(document, journal=journal)).status == "failed"
    assert board.attempts == {"sub/a": 3, "sub/bad": 3}
    await board.run(document, finished=journal.results)
    assert board.attempts == {"sub/a": 5, "sub/bad": 6}


async def test_step_whose_failure_ended_the_run_is_tried_anew(board: Board) -> None:
    journal = Written()
    document = flow([node("a", "echo", value=1), node("bad", "fail")], chain("a", "bad"))
    assert (await board.run(document, journal=journal)).status == "failed"
    assert (await board.run(document, finished=journal.results)).status == "failed"
    assert board.attempts == {"a": 1, "bad": 2}


async def test_journal_that_cannot_be_written_ends_the_run_with_3002(board: Board) -> None:
    class Broken(Written):
        async def step_finished(self, run_id: str, step_id: str, result: StepResult) -> None:
            raise OSError("the disk is full")

    ended = await board.run(flow([node("a", "echo"), node("b", "echo")], chain("a", "b")), journal=Broken())
    assert (ended.error["code"], ended.error["data"]["cause"]) == (3002, "OSError")
    assert "the disk is full" in ended.error["message"]
    assert board.attempts == {"a": 1}
