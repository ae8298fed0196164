"""Stored runs are resumed after `kill -9`, and finished steps are not repeated."""

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
from tests.support.flows import PolledRun, StdioRuntime, chain, edge, flow, node, running_runtime
from tests.support.network.counting import CountingApi
from tests.support.processes import TIMEOUT_SECONDS, wait_until

from hutch.protocols.rep.runtime import lease
from hutch.settings import Settings
from hutch.store.models import FlowRunRow
from hutch.store.tables.journal import JournalEntry
from hutch.vault.flow_keys import open_store


@pytest.fixture
def upstream() -> Iterator[CountingApi]:
    with CountingApi() as api:
        yield api


def five_steps(upstream: CountingApi) -> dict[str, Any]:
    """Returns a flow with the steps `a`, `b`, `held` and `d` in a chain, and `beside` parallel to them."""
    nodes = [node(id, "http.get", **upstream.step(id)) for id in ("a", "b", "held", "d", "beside")]
    nodes.append(node("end", "finish", outputs=["$step.a.body.count", "$step.d.body.count"]))
    return flow(nodes, [*chain("a", "b", "held", "d", "end"), edge("beside", "end")])


def start_stored(runtime: StdioRuntime, ir: dict[str, Any], run_id: str, **options: Any) -> str:
    return runtime.start(ir, run_id=run_id, journal=True, **options)


def run_stored(runtime: StdioRuntime, ir: dict[str, Any], run_id: str, **options: Any) -> PolledRun:
    return runtime.ended(start_stored(runtime, ir, run_id, **options))


def settings_of(home: Path, upstream: CountingApi, database_url: str | None = None) -> dict[str, str]:
    return {
        "HUTCH_HOME": str(home),
        "HUTCH_EGRESS_ALLOW": upstream.address,
        "HUTCH_DATABASE_URL": database_url or "",
    }


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(TIMEOUT_SECONDS)


# --- killed runtimes ---


def test_run_of_a_killed_runtime_is_resumed_without_repeating_steps(
    store_settings: Settings, upstream: CountingApi
) -> None:
    env = settings_of(store_settings.home_path, upstream, store_settings.database_url)
    ir = five_steps(upstream)
    upstream.hold("/held")
    with running_runtime(**env) as runtime:
        start_stored(runtime, ir, "r")
        upstream.wait_for_request("/held")
        upstream.wait_for_request("/beside")
        events: list[dict[str, Any]] = []
        runtime.poll_until(
            "r", lambda _: ("beside", "succeeded") in PolledRun("", {}, events).steps(), events
        )
        kill(runtime.process)
    upstream.release("/held")
    with running_runtime(**env) as other:
        ended = run_stored(other, ir, "r", resume=True)
    assert ended.outputs == [1, 1]
    assert ended.summary["completed_steps"] == 6
    assert upstream.request_counts == {"/a": 1, "/b": 1, "/held": 2, "/d": 1, "/beside": 1}
    assert ended.logs()[0] == "resumed: 3 steps were finished before"
    restored = [each["step_id"] for each in ended.events if each.get("restored")]
    assert sorted(restored) == ["a", "b", "beside"]
    assert next(each for each in ended.steps() if each[0] not in restored) == ("held", "started")


def test_items_that_were_finished_before_a_kill_are_not_repeated(
    tmp_path: Path, upstream: CountingApi
) -> None:
    env = settings_of(tmp_path, upstream)
    urls = [upstream.step(f"i{index}")["url"] for index in range(6)]
    inner = {"type": "http.get", "with": {"url": "$item"}}
    ir = flow([node("each", "for_each", items=urls, step=inner, max_parallel=2)], [])
    upstream.hold("/i3")
    with running_runtime(**env) as runtime:
        start_stored(runtime, ir, "r")
        upstream.wait_for_request("/i3")
        events: list[dict[str, Any]] = []
        runtime.poll_until(
            "r", lambda _: ("each/5", "succeeded") in PolledRun("", {}, events).steps(), events
        )
        kill(runtime.process)
    upstream.release("/i3")
    with running_runtime(**env) as other:
        ended = run_stored(other, ir, "r", resume=True)
    assert [item["body"]["count"] for item in ended.outputs["each"]] == [1, 1, 1, 2, 1, 1]
    assert upstream.request_counts == {**{f"/i{index}": 1 for index in range(6)}, "/i3": 2}


def test_result_is_durable_before_the_next_step_starts(tmp_path: Path, upstream: CountingApi) -> None:
    env = settings_of(tmp_path, upstream)
    ids = [f"s{number}" for number in range(12)]
    ir = flow([node(id, "http.get", **upstream.step(id)) for id in ids], chain(*ids))
    for number in range(1, 12, 2):
        upstream.hold(f"/s{number}")
        with running_runtime(**env) as runtime:
            start_stored(runtime, ir, "r")
            upstream.wait_for_request(f"/s{number}")
            kill(runtime.process)
        upstream.release(f"/s{number}")
    with running_runtime(**env) as last:
        assert run_stored(last, ir, "r").status == "completed"
    assert upstream.request_counts == {f"/{id}": 1 + int(id[1:]) % 2 for id in ids}


def test_runtime_releases_the_run_when_its_orchestrator_disconnects(
    tmp_path: Path, upstream: CountingApi
) -> None:
    env = settings_of(tmp_path, upstream)
    upstream.hold("/held")
    with running_runtime(**env) as runtime:
        start_stored(runtime, five_steps(upstream), "r")
        upstream.wait_for_request("/held")
        runtime.close()
        assert runtime.process.wait(TIMEOUT_SECONDS) == 0
    found = stored_run(tmp_path, "r")
    assert (found.status, found.holder, lease.run_state(found)) == ("running", "", "interrupted")
    upstream.release("/held")
    with running_runtime(**env) as other:
        assert run_stored(other, five_steps(upstream), "r").outputs == [1, 1]


def test_run_held_by_another_process_is_refused(tmp_path: Path, upstream: CountingApi) -> None:
    env = settings_of(tmp_path, upstream)
    upstream.hold("/held")
    with running_runtime(**env) as runtime, running_runtime(**env) as other:
        start_stored(runtime, five_steps(upstream), "r")
        upstream.wait_for_request("/held")
        refused = run_stored(other, five_steps(upstream), "r", resume=True)
        assert (refused.error["code"], refused.error["data"]["details"]["held"]) == (1003, True)
        assert "running in another process" in refused.error["message"]
        upstream.release("/held")
        assert runtime.ended("r").outputs == [1, 1]
    assert upstream.request_counts["/held"] == 1


# --- the same run twice ---


def test_ended_run_returns_its_result_again_without_work(tmp_path: Path, upstream: CountingApi) -> None:
    env = settings_of(tmp_path, upstream)
    with running_runtime(**env) as runtime:
        first = run_stored(runtime, five_steps(upstream), "r")
    with running_runtime(**env) as other:
        again = run_stored(other, five_steps(upstream), "r", resume=True)
    assert (again.status, again.summary, again.events) == ("completed", first.summary, [])
    assert upstream.request_counts["/a"] == upstream.request_counts["/d"] == 1


def test_failed_run_stays_failed_until_resumed(tmp_path: Path, upstream: CountingApi) -> None:
    env = settings_of(tmp_path, upstream)
    upstream.fail("/held", 2)
    with running_runtime(**env) as runtime:
        first = run_stored(runtime, five_steps(upstream), "r")
        assert first.error["data"]["step_id"] == "held"
    with running_runtime(**env) as other:
        assert run_stored(other, five_steps(upstream), "r").summary == first.summary
    assert upstream.request_counts["/held"] == 1
    with running_runtime(**env) as other:
        assert run_stored(other, five_steps(upstream), "r", resume=True).error["data"]["step_id"] == "held"
    with running_runtime(**env) as other:
        assert run_stored(other, five_steps(upstream), "r", resume=True).outputs == [1, 1]
    assert upstream.request_counts == {"/a": 1, "/b": 1, "/held": 3, "/d": 1, "/beside": 1}


def test_cancelled_run_is_stored_and_can_be_resumed(tmp_path: Path, upstream: CountingApi) -> None:
    env = settings_of(tmp_path, upstream)
    upstream.hold("/held")
    with running_runtime(**env) as runtime:
        start_stored(runtime, five_steps(upstream), "r")
        upstream.wait_for_request("/held")
        runtime.result("Cancel", run_id="r")
        assert runtime.ended("r").summary["cancelled"] is True
    found = stored_run(tmp_path, "r")
    assert (found.status, found.outcome, lease.run_state(found)) == ("failed", "cancelled", "cancelled")
    upstream.release("/held")
    with running_runtime(**env) as other:
        assert run_stored(other, five_steps(upstream), "r", resume=True).outputs == [1, 1]


@pytest.mark.parametrize("change", ["flow", "inputs"])
def test_run_id_with_another_flow_or_inputs_is_refused(tmp_path: Path, change: str) -> None:
    with running_runtime(HUTCH_HOME=str(tmp_path)) as runtime:
        ir = flow([node("w", "wait", seconds=0)])
        assert runtime.ended(runtime.start(ir, {"n": 1}, run_id="r", journal=True)).status == "completed"
    with running_runtime(HUTCH_HOME=str(tmp_path)) as other:
        ir = flow([node("x", "wait", seconds=0)]) if change == "flow" else ir
        inputs = {"n": 2} if change == "inputs" else {"n": 1}
        error = other.ended(other.start(ir, inputs, run_id="r", journal=True)).error
    assert error["code"] == 1003
    assert error["data"]["details"]["problems"][0]["path"] == "options.run_id"


def test_run_without_a_journal_writes_nothing(tmp_path: Path) -> None:
    with running_runtime(HUTCH_HOME=str(tmp_path / "home")) as runtime:
        assert runtime.run(flow([node("w", "wait", seconds=0)])).status == "completed"
    assert not (tmp_path / "home").exists()


def test_flows_run_without_a_writable_home() -> None:
    # No user can create files in /proc. Root can write in every other folder.
    with running_runtime(HUTCH_HOME="/proc/home") as runtime:
        assert run_stored(runtime, flow([node("w", "wait", seconds=0)]), "r").status == "completed"
        assert runtime.close() == b""
        assert runtime.process.stderr is not None
        assert b"this run is not stored" in runtime.process.stderr.read()
    with running_runtime(HUTCH_HOME="/proc/home") as runtime:
        refused = run_stored(runtime, flow([node("w", "wait", seconds=0)]), "r", resume=True)
        assert refused.error["code"] == 3002


def test_unknown_user_and_invalid_run_id_are_refused(tmp_path: Path) -> None:
    with running_runtime(HUTCH_HOME=str(tmp_path)) as runtime:
        ir = flow([node("w", "wait", seconds=0)])
        error = runtime.ended(runtime.start(ir, journal=True, user="unknown")).error
        assert (error["code"], "there is no user 'unknown'" in error["message"]) == (1003, True)
        error = runtime.ended(runtime.start(ir, run_id="a\0b", journal=True)).error
        assert (error["code"], error["data"]["details"]["problems"][0]["path"]) == (1003, "options.run_id")


def test_values_of_all_types_survive_a_restart(tmp_path: Path, upstream: CountingApi) -> None:
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
    with running_runtime(**settings_of(tmp_path, upstream)) as runtime:
        runtime.start(ir, {"x": "\0\U0001f600"}, run_id="r", journal=True)
        upstream.wait_for_request("/held")
        kill(runtime.process)
    upstream.release("/held")
    with running_runtime(**settings_of(tmp_path, upstream)) as other:
        ended = other.ended(other.start(ir, {"x": "\0\U0001f600"}, run_id="r", journal=True))
    assert ended.outputs == {"value": value, "more": "\0\U0001f600"}


def test_open_approvals_are_stored_and_survive_a_restart(tmp_path: Path) -> None:
    ir = flow([node("a", "approve", message="A?"), node("b", "approve", message="B?"), node("e", "dsl.emit")])

    def until_asking(runtime: StdioRuntime, *steps: str) -> None:
        events: list[dict[str, Any]] = []
        runtime.poll_until(
            "r", lambda _: sum(each["type"] == "approval" for each in events) == len(steps), events
        )
        wait_until(lambda: [each.subject for each in approvals_and_events(tmp_path)[0]] == [*steps])

    with running_runtime(HUTCH_HOME=str(tmp_path)) as runtime:
        start_stored(runtime, ir, "r")
        until_asking(runtime, "a", "b")
        runtime.result("Approve", run_id="r", step_id="a", approved=True)
        wait_until(lambda: [each.subject for each in approvals_and_events(tmp_path)[0]] == ["b"])
        kill(runtime.process)
    assert [each.subject for each in approvals_and_events(tmp_path)[0]] == ["b"]
    with running_runtime(HUTCH_HOME=str(tmp_path)) as other:
        start_stored(other, ir, "r")
        until_asking(other, "b")
        expected = ["approval", "step", "approval"]
        wait_until(
            lambda: (
                [each.kind for each in approvals_and_events(tmp_path)[1] if each.subject == "b"] == expected
            )
        )
        # Only events of the steps that ask for approvals have a subject.
        assert {each.subject for each in approvals_and_events(tmp_path)[1]} == {None, "a", "b"}
        other.result("Approve", run_id="r", step_id="b", approved=True)
        assert other.ended("r").status == "completed"
    assert approvals_and_events(tmp_path)[0] == []


def approvals_and_events(home: Path) -> tuple[list[JournalEntry], list[JournalEntry]]:
    """Returns the open approvals and all events."""

    async def read() -> tuple[list[JournalEntry], list[JournalEntry]]:
        async with await open_store(Settings(home=str(home))) as store:
            return await store.journal.open_approvals("r"), await store.journal.events("r")

    return asyncio.run(read())


def stored_run(home: Path, run_id: str) -> FlowRunRow:
    async def read() -> FlowRunRow:
        async with await open_store(Settings(home=str(home))) as store:
            found = await store.journal.get(run_id)
            assert found is not None
            return found

    return asyncio.run(read())
