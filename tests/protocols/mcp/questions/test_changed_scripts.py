"""Toolscripts that behave in unusual ways while they wait for approvals, or when they run again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.protocols.mcp.durable_server import DurableServer, serving
from tests.protocols.mcp.harness import text_of
from tests.protocols.mcp.questions.test_suspended_scripts import decide, resume, run, until, waiting_run
from tests.protocols.toolscript.fakes import FakeTool, returning
from tests.support.processes import TIMEOUT_SECONDS

from hutch.protocols.toolscript.gateway.approvals import Approval, ApprovalAnswer
from hutch.protocols.toolscript.gateway.gateway import CompletedCall

SCRIPTS = "hutch.protocols.toolscript.durable.durable_scripts"
LATE_QUESTION = """
    const make = async (title: string) => (await tools.github.createIssue({ title })).number;
    const late = async () => {
        await new Promise((resolve) => setTimeout(resolve, 500));
        return await make("late");
    };
    return await Promise.all([make("a"), make("b"), late()]);
"""


@pytest.fixture(autouse=True)
def intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SCRIPTS}.POLL_SECONDS", 0.1)
    monkeypatch.setattr("hutch.kernel.durable.calls.call_replay.DIVERGENCE_SECONDS", 1.0)


def questions(server: DurableServer) -> dict[str, Approval]:
    """Returns the calls that wait for a decision, by the title in their arguments."""
    return {each.arguments["title"]: each for each in server.app.gateway.approvals.pending()}


def allow(server: DurableServer, title: str, **more: Any) -> None:
    answer = ApprovalAnswer("allow", **more)
    assert server.app.gateway.approvals.decide(questions(server)[title].id, answer)


async def state_of(server: DurableServer, run_id: str) -> tuple[str | None, int]:
    """Returns the state of a stored run, and the number of its pending calls."""
    store = await server.app.storage.store()
    return await server.app.suspended_runs.state(run_id), len(await store.checkpoints.calls(run_id))


async def wait_for_stored(server: DurableServer, run_id: str, count: int) -> None:
    """Waits until a run is suspended with this number of pending calls."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await state_of(server, run_id) != ("suspended", count):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def start_late_question(home: Path, code: str = LATE_QUESTION) -> str:
    """Starts a script on a server that stops when the script waits for three approvals."""
    async with serving(home) as server, server.client() as client:
        run_id = waiting_run(await run(client, code))
        await wait_for_stored(server, run_id, 3)
    return run_id


async def test_question_stays_until_a_script_that_runs_again_comes_to_it(tmp_path: Path) -> None:
    run_id = await start_late_question(tmp_path)
    async with serving(tmp_path) as server, server.client() as client:
        await resume(client, run_id)
        allow(server, "a")
        await until(lambda: run_id in server.app.kernel.active)
        # The script waits for "b", and has not come to "late" yet.
        await wait_for_stored(server, run_id, 2)
        store = await server.app.storage.store()
        assert all(call.is_question for call in await store.checkpoints.calls(run_id))
        allow(server, "b")
        allow(server, "late")
        assert text_of(await resume(client, run_id)) == "[7,7,7]\n\n(3 tool calls)"
        made = [arguments["title"] for _, _, arguments in server.upstream.calls]
    assert sorted(made) == ["a", "b", "late"]


async def test_result_stays_until_a_script_that_runs_again_comes_to_its_call(tmp_path: Path) -> None:
    run_id = await start_late_question(tmp_path)
    async with serving(tmp_path) as server, server.client() as client:
        await resume(client, run_id)
        store = await server.app.storage.store()
        first = row = await store.checkpoints.get(run_id)
        assert first is not None
        allow(server, "late")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while row is None or row.generation == first.generation or row.state != "suspended":
                await asyncio.sleep(0.01)
                row = await store.checkpoints.get(run_id)
        # The script waits for "a" and "b" again, and has not come to "late" yet.
    async with serving(tmp_path) as server, server.client() as client:
        await resume(client, run_id)
        assert {*questions(server)} == {"a", "b"}
        allow(server, "a")
        allow(server, "b")
        assert text_of(await resume(client, run_id)) == "[7,7,7]\n\n(3 tool calls)"
        made = [arguments["title"] for _, _, arguments in server.upstream.calls]
    assert sorted(made) == ["a", "b"]


async def test_script_that_leaves_out_an_approved_call_does_not_run_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = LATE_QUESTION.replace('await make("late")', '!("look" in tools.github) && await make("late")')
    run_id = await start_late_question(tmp_path, code)
    monkeypatch.setattr(f"{SCRIPTS}.KEEP_SECONDS", 1.0)
    async with serving(tmp_path) as server, server.client() as client:
        add_look(server, returning("text"))
        await resume(client, run_id)
        allow(server, "late")
        allow(server, "a")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while "waits until" in (told := text_of(await resume(client, run_id))):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert "now it does not call github__create_issue (recorded call 3)" in told
        assert questions(server) == {}


@pytest.mark.parametrize("rule", ["deny", "ask"])
async def test_script_gets_the_error_of_a_denied_call_again(tmp_path: Path, rule: str) -> None:
    code = """
        const told = (error: Error) => error.message;
        const denied = [];
        for (const path of ["a", "b"]) denied.push(await tools.fileSystem.readFile({ path }).catch(told));
        await tools.github.listIssues({});
        return [...denied, (await tools.github.createIssue({ title: "x" })).number];
    """
    rules = {"github__create_issue": "ask", "file-system": rule}
    async with serving(tmp_path, approvals=rules) as first, first.client() as client:
        run_id = waiting_run(await run(client, code))
        if rule == "ask":
            (asked,) = first.app.gateway.approvals.pending()
            assert first.app.gateway.approvals.decide(asked.id, ApprovalAnswer("deny", remember=True))
            assert "create_issue" in text_of(await resume(client, run_id))
    async with serving(tmp_path, approvals=rules) as second, second.client() as client:
        await resume(client, run_id)
        decide(second, run_id)
        told = text_of(await resume(client, run_id))
    message = "The policy denies" if rule == "deny" else "was denied"
    assert told.count(message) == 2
    assert "(4 tool calls, 2 failed)" in told
    assert second.made == ["create_issue"]


async def test_too_large_question_fails_again(tmp_path: Path) -> None:
    code = """
        const large = tools.github.createIssue({ title: "x".repeat(300_000) });
        const told = await large.catch((error: Error) => error.message);
        await tools.github.listIssues({});
        return [told, (await tools.github.createIssue({ title: "x" })).number];
    """
    async with serving(tmp_path) as first, first.client() as client:
        run_id = waiting_run(await run(client, code))
    async with serving(tmp_path) as second, second.client() as client:
        await resume(client, run_id)
        decide(second, run_id)
        assert 'may have 262144",7]' in text_of(await resume(client, run_id))


async def test_script_leaves_memory_although_it_asks_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{SCRIPTS}.KEEP_SECONDS", 1.0)
    code = """
        const url = Deno.env.get("TOOLSCRIPT_GATEWAY_URL") + "/tools/github__create_issue";
        const headers = { "content-type": "application/json" };
        const body = JSON.stringify({ title: "x" });
        const ask = () => fetch(url, { method: "POST", body, headers, signal: AbortSignal.timeout(600) });
        const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
        const stop = Date.now() + 30_000;
        await Promise.all([0, 300].map(async (ms) => {
            await pause(ms);
            while (Date.now() < stop) await ask().catch(() => 0);
        }));
    """
    async with serving(tmp_path) as server, server.client() as client:
        run_id = waiting_run(await run(client, code, check=False, timeout_seconds=2))
        async with asyncio.timeout(15):
            while run_id in server.app.kernel.active:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert "waits until" in text_of(await resume(client, run_id))


async def test_repeated_call_that_now_needs_an_approval_is_recorded(tmp_path: Path) -> None:
    """The call was being made when the first server stopped, and its tool is idempotent."""
    code = """
        const read = tools.github.look({});
        return [(await tools.github.createIssue({ title: "x" })).number, await read, await read];
    """
    async with serving(tmp_path) as server, server.client() as client:
        add_look(server, server.upstream.wait)
        run_id = waiting_run(await run(client, code, check=False))
        await until(lambda: "look" in server.made)
    async with serving(tmp_path, approvals={"github": "ask"}) as server, server.client() as client:
        add_look(server, returning("text"))
        await resume(client, run_id)
        decide(server, run_id)
        told = text_of(await resume(client, run_id))
        assert "- look of github" in told, told
        decide(server, run_id)
        assert text_of(await resume(client, run_id)).startswith('[7,"text","text"]')
        assert server.made == ["create_issue", "look"]


def add_look(server: DurableServer, function: Any) -> None:
    """Gives a server an idempotent tool."""
    server.upstream.tool_list.append(FakeTool("github", "look", annotations={"readOnlyHint": True}))
    server.upstream.functions["look"] = function


async def test_script_makes_no_call_after_another_server_has_continued_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        const list = () => tools.github.listIssues({}).catch((error: Error) => error.message);
        const branch = async () => {
            await tools.github.wait({}).catch(() => 0);
            for (let i = 0; i < 5; i++) await list();
        };
        await Promise.all([branch(), tools.github.createIssue({ title: "x" })]);
        return "end";
    """
    # The first server does not look for changes by others while the test runs.
    monkeypatch.setattr(f"{SCRIPTS}.POLL_SECONDS", 3600)
    async with serving(tmp_path) as first, serving(tmp_path) as second:
        first.upstream.functions["wait"] = first.upstream.wait
        completed: list[CompletedCall] = []
        first.app.gateway.on_call.append(completed.append)
        async with first.client() as client, second.client() as other:
            run_id = waiting_run(await run(client, code))
            await resume(other, run_id)
            decide(second, run_id)
            assert text_of(await resume(other, run_id)).startswith("end")
            first.upstream.released.set()
            await until(lambda: len(completed) == 6)
        assert [call.ok for call in completed] == [True, *[False] * 5]
        assert first.made == ["wait"]
        assert second.made == ["create_issue", *["list_issues"] * 5]
