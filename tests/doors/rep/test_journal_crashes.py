"""Runs that are written down: after `kill -9` they go on where they were, and nothing is done twice."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.counting import Counting
from tests.flows import Ended, Runtime, chain, edge, flow, node, serving
from tests.processes import PATIENCE, until

from hutch.doors.rep import holders
from hutch.settings import Settings
from hutch.store.journal import Entry
from hutch.store.rows import FlowRunRow
from hutch.vault.journals import open_store


@pytest.fixture
def upstream() -> Iterator[Counting]:
    with Counting() as one:
        yield one


def four(upstream: Counting) -> dict[str, Any]:
    """Two steps, one that is held up, and one after it; beside them a branch of its own."""
    nodes = [node(id, "http.get", **upstream.step(id)) for id in ("a", "b", "held", "d", "beside")]
    nodes.append(node("end", "finish", outputs=["$step.a.body.count", "$step.d.body.count"]))
    return flow(nodes, [*chain("a", "b", "held", "d", "end"), edge("beside", "end")])


def started(runtime: Runtime, ir: dict[str, Any], run_id: str, **options: Any) -> str:
    return runtime.start(ir, run_id=run_id, journal=True, **options)


def through(runtime: Runtime, ir: dict[str, Any], run_id: str, **options: Any) -> Ended:
    return runtime.ended(started(runtime, ir, run_id, **options))


def settings_of(home: Path, upstream: Counting, database_url: str | None = None) -> dict[str, str]:
    return {
        "HUTCH_HOME": str(home),
        "HUTCH_EGRESS_ALLOW": upstream.address,
        "HUTCH_DATABASE_URL": database_url or "",
    }


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)


# --- a runtime that is killed ---


def test_killed_runtime_is_gone_on_with_by_the_next_without_doing_anything_twice(
    store_settings: Settings, upstream: Counting
) -> None:
    env = settings_of(store_settings.home_path, upstream, store_settings.database_url)
    ir = four(upstream)
    upstream.hold("/held")
    with serving(**env) as one:
        started(one, ir, "r")
        upstream.until_asked("/held")
        upstream.until_asked("/beside")
        events: list[dict[str, Any]] = []
        one.poll_until("r", lambda _: ("beside", "succeeded") in Ended("", {}, events).steps(), events)
        kill(one.process)
    upstream.let_go("/held")
    with serving(**env) as other:
        ended = through(other, ir, "r", resume=True)
    assert ended.outputs == [1, 1]
    assert ended.summary["completed_steps"] == 6
    assert upstream.asked == {"/a": 1, "/b": 1, "/held": 2, "/d": 1, "/beside": 1}
    assert ended.logs()[0] == "goes on: 3 steps are over already"
    restored = [each["step_id"] for each in ended.events if each.get("restored")]
    assert sorted(restored) == ["a", "b", "beside"]
    assert next(each for each in ended.steps() if each[0] not in restored) == ("held", "started")


def test_step_is_on_the_disk_before_what_comes_after_it_begins(tmp_path: Path, upstream: Counting) -> None:
    env = settings_of(tmp_path, upstream)
    ids = [f"s{number}" for number in range(12)]
    ir = flow([node(id, "http.get", **upstream.step(id)) for id in ids], chain(*ids))
    for number in range(1, 12, 2):
        upstream.hold(f"/s{number}")
        with serving(**env) as one:
            started(one, ir, "r")
            upstream.until_asked(f"/s{number}")
            kill(one.process)
        upstream.let_go(f"/s{number}")
    with serving(**env) as last:
        assert through(last, ir, "r").status == "completed"
    assert upstream.asked == {f"/{id}": 1 + int(id[1:]) % 2 for id in ids}


def test_runtime_whose_orchestrator_went_away_lets_go_of_the_run(tmp_path: Path, upstream: Counting) -> None:
    env = settings_of(tmp_path, upstream)
    upstream.hold("/held")
    with serving(**env) as one:
        started(one, four(upstream), "r")
        upstream.until_asked("/held")
        one.close()
        assert one.process.wait(PATIENCE) == 0
    found = kept(tmp_path, "r")
    assert (found.status, found.holder, holders.state(found)) == ("running", "", "interrupted")
    upstream.let_go("/held")
    with serving(**env) as other:
        assert through(other, four(upstream), "r").outputs == [1, 1]


def test_run_that_another_process_has_is_left_to_it(tmp_path: Path, upstream: Counting) -> None:
    env = settings_of(tmp_path, upstream)
    upstream.hold("/held")
    with serving(**env) as one, serving(**env) as other:
        started(one, four(upstream), "r")
        upstream.until_asked("/held")
        refused = through(other, four(upstream), "r", resume=True)
        assert (refused.error["code"], refused.error["data"]["details"]["held"]) == (1003, True)
        assert "under way in another process" in refused.error["message"]
        upstream.let_go("/held")
        assert one.ended("r").outputs == [1, 1]
    assert upstream.asked["/held"] == 1


# --- the same run twice ---


def test_run_that_is_over_gives_its_end_again_and_does_nothing(tmp_path: Path, upstream: Counting) -> None:
    env = settings_of(tmp_path, upstream)
    with serving(**env) as one:
        first = through(one, four(upstream), "r")
    with serving(**env) as other:
        again = through(other, four(upstream), "r", resume=True)
    assert (again.status, again.summary, again.events) == ("completed", first.summary, [])
    assert upstream.asked["/a"] == upstream.asked["/d"] == 1


def test_failed_run_stays_so_until_it_is_resumed(tmp_path: Path, upstream: Counting) -> None:
    env = settings_of(tmp_path, upstream)
    upstream.fail("/held", 2)
    with serving(**env) as one:
        first = through(one, four(upstream), "r")
        assert first.error["data"]["step_id"] == "held"
    with serving(**env) as other:
        assert through(other, four(upstream), "r").summary == first.summary
    assert upstream.asked["/held"] == 1
    with serving(**env) as other:
        assert through(other, four(upstream), "r", resume=True).error["data"]["step_id"] == "held"
    with serving(**env) as other:
        assert through(other, four(upstream), "r", resume=True).outputs == [1, 1]
    assert upstream.asked == {"/a": 1, "/b": 1, "/held": 3, "/d": 1, "/beside": 1}


def test_cancelled_run_is_kept_as_such_and_may_be_resumed(tmp_path: Path, upstream: Counting) -> None:
    env = settings_of(tmp_path, upstream)
    upstream.hold("/held")
    with serving(**env) as one:
        started(one, four(upstream), "r")
        upstream.until_asked("/held")
        one.result("Cancel", run_id="r")
        assert one.ended("r").summary["cancelled"] is True
    found = kept(tmp_path, "r")
    assert (found.status, found.outcome, holders.state(found)) == ("failed", "cancelled", "cancelled")
    upstream.let_go("/held")
    with serving(**env) as other:
        assert through(other, four(upstream), "r", resume=True).outputs == [1, 1]


@pytest.mark.parametrize("change", ["flow", "inputs"])
def test_run_id_of_another_flow_or_other_inputs_is_refused(tmp_path: Path, change: str) -> None:
    with serving(HUTCH_HOME=str(tmp_path)) as one:
        ir = flow([node("w", "wait", seconds=0)])
        assert one.ended(one.start(ir, {"n": 1}, run_id="r", journal=True)).status == "completed"
    with serving(HUTCH_HOME=str(tmp_path)) as other:
        ir = flow([node("x", "wait", seconds=0)]) if change == "flow" else ir
        inputs = {"n": 2} if change == "inputs" else {"n": 1}
        error = other.ended(other.start(ir, inputs, run_id="r", journal=True)).error
    assert error["code"] == 1003
    assert error["data"]["details"]["problems"][0]["path"] == "options.run_id"


def test_run_without_a_journal_leaves_no_trace(tmp_path: Path) -> None:
    with serving(HUTCH_HOME=str(tmp_path / "home")) as one:
        assert one.run(flow([node("w", "wait", seconds=0)])).status == "completed"
    assert not (tmp_path / "home").exists()


def test_where_nothing_can_be_written_flows_run_all_the_same() -> None:
    # Also for root, who may write anywhere, this is no place for a store.
    with serving(HUTCH_HOME="/proc/home") as one:
        assert through(one, flow([node("w", "wait", seconds=0)]), "r").status == "completed"
        assert one.close() == b""
        assert one.process.stderr is not None
        assert b"this run is not kept" in one.process.stderr.read()
    with serving(HUTCH_HOME="/proc/home") as one:
        refused = through(one, flow([node("w", "wait", seconds=0)]), "r", resume=True)
        assert refused.error["code"] == 3002


def test_unknown_user_and_names_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    with serving(HUTCH_HOME=str(tmp_path)) as one:
        ir = flow([node("w", "wait", seconds=0)])
        error = one.ended(one.start(ir, journal=True, user="nobody")).error
        assert (error["code"], "there is no user 'nobody'" in error["message"]) == (1003, True)
        error = one.ended(one.start(ir, run_id="a\0b", journal=True)).error
        assert (error["code"], error["data"]["details"]["problems"][0]["path"]) == (1003, "options.run_id")


def test_values_of_every_kind_survive(tmp_path: Path, upstream: Counting) -> None:
    value: dict[str, Any] = {
        "text": "\0 é \ud800",
        "n": [0.1, -1, 2**53, True, None],
        "deep": {"a": [{}]},
        "1.0": 1.0,
    }
    value["list"] = functools.reduce(lambda inner, _: [inner], range(100), [])
    code = f"({{value: {json.dumps(value)}, ...input}})"
    nodes = [
        node("a", "code.run", code=code, input={"more": "$input.x"}),
        node("held", "http.get", **upstream.step("held")),
        node("end", "finish", outputs="$step.a"),
    ]
    ir = flow(nodes, chain("a", "held", "end"))
    upstream.hold("/held")
    with serving(**settings_of(tmp_path, upstream)) as one:
        one.start(ir, {"x": "\0\U0001f600"}, run_id="r", journal=True)
        upstream.until_asked("/held")
        kill(one.process)
    upstream.let_go("/held")
    with serving(**settings_of(tmp_path, upstream)) as other:
        ended = other.ended(other.start(ir, {"x": "\0\U0001f600"}, run_id="r", journal=True))
    assert ended.outputs == {"value": value, "more": "\0\U0001f600"}


def test_journal_tells_who_waits_for_a_word_also_of_a_run_that_was_killed_and_goes_on(tmp_path: Path) -> None:
    ir = flow([node("a", "approve", message="A?"), node("b", "approve", message="B?"), node("e", "dsl.emit")])

    def until_asking(runtime: Runtime, *steps: str) -> None:
        asked: list[dict[str, Any]] = []
        runtime.poll_until(
            "r", lambda _: sum(each["type"] == "approval" for each in asked) == len(steps), asked
        )
        until(lambda: [each.subject for each in looked(tmp_path)[0]] == [*steps])

    with serving(HUTCH_HOME=str(tmp_path)) as one:
        started(one, ir, "r")
        until_asking(one, "a", "b")
        one.result("Approve", run_id="r", step_id="a", approved=True)
        until(lambda: [each.subject for each in looked(tmp_path)[0]] == ["b"])
        kill(one.process)
    assert [each.subject for each in looked(tmp_path)[0]] == ["b"]
    with serving(HUTCH_HOME=str(tmp_path)) as other:
        started(other, ir, "r")
        until_asking(other, "b")
        told = ["approval", "step", "approval"]
        until(lambda: [each.kind for each in looked(tmp_path)[1] if each.subject == "b"] == told)
        # What nobody was asked about is in nobody's way.
        assert {each.subject for each in looked(tmp_path)[1]} == {None, "a", "b"}
        other.result("Approve", run_id="r", step_id="b", approved=True)
        assert other.ended("r").status == "completed"
    assert looked(tmp_path)[0] == []


def looked(home: Path) -> tuple[list[Entry], list[Entry]]:
    """What steps ask, and all events."""

    async def read() -> tuple[list[Entry], list[Entry]]:
        async with await open_store(Settings(home=str(home))) as store:
            return await store.journal.asking("r"), await store.journal.events("r")

    return asyncio.run(read())


def kept(home: Path, run_id: str) -> FlowRunRow:
    async def read() -> FlowRunRow:
        async with await open_store(Settings(home=str(home))) as store:
            found = await store.journal.get(run_id)
            assert found is not None
            return found

    return asyncio.run(read())
