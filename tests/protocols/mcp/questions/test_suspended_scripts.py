"""Toolscripts of `run_code` that are stored while they wait for approvals, and run again after a restart."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, ElicitResult, InputRequiredResult
from tests.protocols.mcp.durable_server import ALLOW, DENY, MODERN, DurableServer, person, serving
from tests.protocols.mcp.harness import text_of
from tests.protocols.mcp.questions.test_tasks import TaskClient, request, wait_for_end
from tests.support.processes import TIMEOUT_SECONDS

from hutch.kernel.durable.replayed_runs import ReplayedRuns
from hutch.protocols.mcp.server import HutchMcpServer
from hutch.protocols.toolscript.durable.durable_script import DurableScript
from hutch.protocols.toolscript.gateway.approvals import ApprovalAnswer

SCRIPT = """
    const issues = await tools.github.listIssues({});
    console.log("listed");
    const created = await tools.github.createIssue({ title: "x" });
    return `${(issues as unknown[]).length} and ${created.number}`;
"""
RESULT = "1 and 7\n\nstdout:\nlisted\n\n(2 tool calls)"


@pytest.fixture(autouse=True)
def intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.protocols.toolscript.durable.durable_scripts.POLL_SECONDS", 0.1)
    monkeypatch.setattr("hutch.kernel.durable.calls.call_replay.DIVERGENCE_SECONDS", 0.3)


async def run(client: Client, code: str = SCRIPT, **more: Any) -> CallToolResult:
    return await client.call_tool("run_code", {"code": code, **more})


async def call(client: Client, code: str = SCRIPT, **more: Any) -> CallToolResult | InputRequiredResult:
    """Calls `run_code` without answering its questions."""
    return await client.session.call_tool("run_code", {"code": code}, allow_input_required=True, **more)


def waiting_run(answer: CallToolResult) -> str:
    """Returns the id of the run from a result that says what it waits for."""
    assert not answer.is_error
    found = re.search(r"continue_run with run_id (\S+) ", text_of(answer))
    assert found is not None, text_of(answer)
    return found[1]


async def resume(client: Client, run_id: str, **more: Any) -> CallToolResult:
    return await client.call_tool("continue_run", {"run_id": run_id, **more})


def decide(server: DurableServer, run_id: str, decision: Any = "allow") -> None:
    (approval,) = [each for each in server.app.gateway.approvals.pending() if each.run == run_id]
    assert server.app.gateway.approvals.decide(approval.id, ApprovalAnswer(decision))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def answers(asked: InputRequiredResult, answer: ElicitResult = ALLOW) -> dict[str, Any]:
    return {
        "request_state": asked.request_state,
        "input_responses": dict.fromkeys(asked.input_requests or {}, answer),
    }


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_client_without_elicitation_is_told_how_to_continue(
    server: DurableServer, calls: list[Any], mode: str
) -> None:
    async with server.client(mode) as client:
        answer = await run(client)
        run_id = waiting_run(answer)
        assert '- create_issue of github: {"title":"x"}' in text_of(answer)
        assert "web console" in text_of(answer)
        waiting = await resume(client, run_id, format="json")
        assert waiting.structured_content is not None
        assert waiting.structured_content["error"]["code"] == "suspended"
        assert waiting.structured_content["waiting"][0]["tool"] == "create_issue"
        assert server.made == ["list_issues"]
        decide(server, run_id)
        assert text_of(await resume(client, run_id)) == RESULT
        assert server.made == ["list_issues", "create_issue"]
        # The result is kept.
        assert text_of(await resume(client, run_id)) == RESULT


async def test_modern_client_is_asked_by_input_required(server: DurableServer, calls: list[Any]) -> None:
    user = person(ALLOW)
    async with server.client(elicitation_callback=user) as client:
        assert text_of(await run(client)) == RESULT
    assert user.asked == ['May create_issue of github be called?\n{"title":"x"}']
    assert server.made == ["list_issues", "create_issue"]


async def test_denied_call_fails_in_the_script(server: DurableServer, calls: list[Any]) -> None:
    code = """
        try { await tools.github.createIssue({ title: "x" }); } catch (error) { return error.message; }
    """
    async with server.client(elicitation_callback=person(DENY)) as client:
        answer = await run(client, code)
    assert "github__create_issue was denied: the user declined" in text_of(answer)
    assert calls == []


async def test_calls_of_one_round_are_asked_for_together(server: DurableServer, calls: list[Any]) -> None:
    code = """
        const titles = ["a", "b", "c"];
        const made = await Promise.all(titles.map((title) => tools.github.createIssue({ title })));
        return made.length;
    """
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        asked = await call(client, code)
        assert isinstance(asked, InputRequiredResult)
        assert len(asked.input_requests or {}) == 3
        assert text_of(await call(client, code, **answers(asked))) == "3\n\n(3 tool calls)"
    assert sorted(arguments["title"] for _, _, arguments in calls) == ["a", "b", "c"]


async def test_each_decision_is_asked_for_when_the_script_needs_it(
    server: DurableServer, calls: list[Any]
) -> None:
    code = 'for (const title of ["a", "b"]) await tools.github.createIssue({ title }); return "both";'
    user = person(ALLOW)
    async with server.client(elicitation_callback=user) as client:
        assert text_of(await run(client, code)) == "both\n\n(2 tool calls)"
    assert [message.splitlines()[1] for message in user.asked] == ['{"title":"a"}', '{"title":"b"}']


async def test_answer_continues_the_script_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as first, first.client(elicitation_callback=person(ALLOW)) as client:
        asked = await call(client)
        assert isinstance(asked, InputRequiredResult)
        assert first.made == ["list_issues"]
    async with serving(tmp_path) as second, second.client(elicitation_callback=person(ALLOW)) as client:
        answer = await call(client, **answers(asked))
        assert text_of(answer) == RESULT
        assert second.made == ["create_issue"]


async def test_script_is_asked_again_after_several_restarts(tmp_path: Path) -> None:
    code = """
        const made = [];
        for (const title of ["a", "b"]) made.push((await tools.github.createIssue({ title })).number);
        return made;
    """
    async with serving(tmp_path) as server, server.client() as client:
        run_id = waiting_run(await run(client, code))
    async with serving(tmp_path) as server, server.client() as client:
        assert waiting_run(await resume(client, run_id)) == run_id
        decide(server, run_id)
        assert '{"title":"b"}' in text_of(await resume(client, run_id))
        assert server.upstream.calls == [("github", "create_issue", {"title": "a"})]
    async with serving(tmp_path) as server, server.client() as client:
        assert '{"title":"b"}' in text_of(await resume(client, run_id))
        decide(server, run_id)
        assert text_of(await resume(client, run_id)) == "[7,7]\n\n(2 tool calls)"
        assert server.upstream.calls == [("github", "create_issue", {"title": "b"})]
        store = await server.app.storage.store()
        assert await store.recorded_calls.of_run(run_id, "local") == []


async def test_script_that_makes_other_calls_after_a_restart_fails(tmp_path: Path) -> None:
    code = """
        await tools.fileSystem.readFile({ path: `/${Math.random()}` });
        return (await tools.github.createIssue({ title: "x" })).number;
    """
    async with serving(tmp_path) as first, first.client() as client:
        run_id = waiting_run(await run(client, code))
    async with serving(tmp_path) as second, second.client() as client:
        assert waiting_run(await resume(client, run_id)) == run_id
        decide(second, run_id)
        answer = await resume(client, run_id)
        assert answer.is_error
        told = "now it calls file-system__read_file with other arguments (recorded call 1)"
        assert told in text_of(answer)
        assert second.made == ["create_issue"]


async def test_script_that_asks_for_another_call_after_a_restart_fails(tmp_path: Path) -> None:
    """The approval was given for other arguments."""
    code = "return (await tools.github.createIssue({ title: `${Math.random()}` })).number;"
    async with serving(tmp_path) as first, first.client() as client:
        run_id = waiting_run(await run(client, code))
    async with serving(tmp_path) as second, second.client() as client:
        await resume(client, run_id)
        decide(second, run_id)
        answer = await resume(client, run_id)
        told = "now it calls github__create_issue with other arguments (recorded call 1)"
        assert told in text_of(answer)
        assert second.made == ["create_issue"]
        assert second.app.gateway.approvals.pending() == []


async def test_decision_counts_once(server: DurableServer, calls: list[Any]) -> None:
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        asked = await call(client)
        assert isinstance(asked, InputRequiredResult)
        assert text_of(await call(client, **answers(asked))) == RESULT
        again = await call(client, **answers(asked))
        assert isinstance(again, CallToolResult)
        assert again.is_error
        assert "A decision counts once" in text_of(again)
    assert server.made == ["list_issues", "create_issue"]


async def test_other_owner_can_neither_continue_nor_cancel(server: DurableServer, calls: list[Any]) -> None:
    async with server.client() as client:
        run_id = waiting_run(await run(client))
        other = HutchMcpServer(server.app, owner="other")
        async with Client(other.server, mode=MODERN) as stranger:
            assert f"There is no suspended run {run_id}" in text_of(await resume(stranger, run_id))
            await resume(stranger, run_id, cancel=True)
        other.close()
        decide(server, run_id)
        assert text_of(await resume(client, run_id)) == RESULT


@pytest.mark.parametrize("restarts", [False, True])
async def test_client_can_cancel(tmp_path: Path, restarts: bool) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        run_id = waiting_run(await run(client))
        if not restarts:
            await check_cancel(server, client, run_id)
    if restarts:
        async with serving(tmp_path) as server, server.client() as client:
            await check_cancel(server, client, run_id)


async def check_cancel(server: DurableServer, client: Client, run_id: str) -> None:
    for message in (f"The run {run_id} was cancelled.", f"The run {run_id} has ended."):
        assert text_of(await resume(client, run_id, cancel=True)) == message
    answer = await resume(client, run_id)
    assert answer.is_error
    assert "cancelled" in text_of(answer)
    assert "create_issue" not in server.made
    assert server.app.gateway.approvals.pending() == []
    await until(lambda: run_id not in server.app.kernel.active)
    store = await server.app.storage.store()
    await store.write_behind.flush()
    record = await store.runs.get(run_id)
    assert record is not None
    assert record.outcome == "cancelled"


async def test_expiry_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        run_id = waiting_run(await run(client))
        store = await server.app.storage.store()
        await store.write_behind.flush()
        assert await store.checkpoints.delete_expired("9000-01-01T00:00:00.000Z")
        await store.runs.end_suspended(run_id, "expired")
        answer = await resume(client, run_id)
        assert answer.is_error
        assert "expired" in text_of(answer)
        await until(lambda: run_id not in server.app.kernel.active)


async def test_script_leaves_memory_and_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.protocols.toolscript.durable.durable_scripts.KEEP_SECONDS", 0)
    async with serving(tmp_path) as server, server.client() as client:
        run_id = waiting_run(await run(client))
        await until(lambda: run_id not in server.app.kernel.active)
        store = await server.app.storage.store()
        await store.write_behind.flush()
        record = await store.runs.get(run_id)
        assert record is not None
        assert record.outcome == "suspended"
        assert waiting_run(await resume(client, run_id)) == run_id
        decide(server, run_id)
        assert text_of(await resume(client, run_id)) == RESULT
        assert server.made == ["list_issues", "create_issue"]
        await store.write_behind.flush()
        record = await store.runs.get(run_id)
        assert record is not None
        assert record.outcome == "ok"


async def test_decision_at_another_server_continues_the_script(tmp_path: Path) -> None:
    async with serving(tmp_path) as first, serving(tmp_path) as second:
        async with first.client() as client:
            run_id = waiting_run(await run(client))
            async with second.client() as other:
                assert waiting_run(await resume(other, run_id)) == run_id
                decide(second, run_id)
                for one in (other, client):
                    assert text_of(await resume(one, run_id)) == RESULT
        assert [*first.made, *second.made] == ["list_issues", "create_issue"]


async def test_owner_cannot_store_more_than_allowed(tmp_path: Path) -> None:
    async with serving(tmp_path, max_suspended_bytes_per_owner=1) as server, server.client() as client:
        answer = await run(client)
        assert answer.is_error
        assert "the script cannot be stored meanwhile" in text_of(answer)
        assert "max_suspended_bytes_per_owner" in text_of(answer)
        assert server.made == ["list_issues"]


async def test_question_that_arrives_while_the_script_is_being_stored_is_asked(
    server: DurableServer, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        const [a, b] = await Promise.all(["a", "b"].map(async (title, index) => {
            await new Promise((resolve) => setTimeout(resolve, 200 * index));
            return (await tools.github.createIssue({ title })).number;
        }));
        return a + b;
    """
    begin, save, both = DurableScript.begin_wait, ReplayedRuns.save, asyncio.Event()

    def begin_wait(script: DurableScript, waiting: Any) -> None:
        begin(script, waiting)
        if len(script.waiting) == 2:
            both.set()

    async def slow_save(runs: ReplayedRuns, *args: Any, **options: Any) -> bool:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await both.wait()
        return await save(runs, *args, **options)

    monkeypatch.setattr(DurableScript, "begin_wait", begin_wait)
    monkeypatch.setattr(ReplayedRuns, "save", slow_save)
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        assert text_of(await run(client, code)) == "14\n\n(2 tool calls)"


async def test_script_cannot_wait_for_too_many_approvals(
    server: DurableServer, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.protocols.toolscript.durable.durable_script.MAX_PENDING_PER_RUN", 2)
    code = """
        const titles = ["a", "b", "c"];
        const made = titles.map((title) => tools.github.createIssue({ title }).catch((e) => e.message));
        return await Promise.all(made);
    """
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        told = text_of(await run(client, code))
    assert "2 calls of this script are waiting for approval already" in told
    assert server.made == ["create_issue", "create_issue"]


async def test_suspended_script_is_a_task_that_another_server_continues(tmp_path: Path) -> None:
    tasks = TaskClient()
    async with serving(tmp_path) as first, first.client("auto", extensions=[tasks]) as client:
        await run(client)
        assert tasks.created is not None
        task_id = tasks.created.taskId
        assert tasks.created.status == "input_required"
    async with serving(tmp_path) as second, second.client(extensions=[TaskClient()]) as client:
        state = await request(client, "tasks/get", taskId=task_id)
        (key,) = state.inputRequests or {}
        answer = {"action": "accept", "content": {}}
        await request(client, "tasks/update", taskId=task_id, inputResponses={key: answer})
        ended = await wait_for_end(client, task_id)
        assert ended.status == "completed"
        assert ended.result is not None
        assert ended.result["content"][0]["text"] == RESULT
        assert second.made == ["create_issue"]


async def test_task_of_a_script_that_runs_can_be_cancelled(server: DurableServer, calls: list[Any]) -> None:
    tasks = TaskClient()
    code = """
        await tools.github.createIssue({ title: "x" });
        await tools.github.wait({});
    """
    server.upstream.functions["wait"] = server.upstream.wait
    async with server.client("auto", extensions=[tasks]) as client:
        await run(client, code)
        assert tasks.created is not None
        task_id = tasks.created.taskId
        decide(server, task_id)
        await until(lambda: server.made == ["create_issue", "wait"])
        await request(client, "tasks/cancel", taskId=task_id)
        assert (await wait_for_end(client, task_id)).status == "cancelled"


async def test_question_is_withdrawn_if_the_script_ends_without_its_answer(
    server: DurableServer, calls: list[Any]
) -> None:
    code = """
        const asked = tools.github.createIssue({ title: "x" }).then(() => "asked");
        return await Promise.race([asked, tools.github.wait({}).then(() => "went")]);
    """
    server.upstream.released.clear()
    server.upstream.functions["wait"] = server.upstream.wait
    async with server.client() as client:
        run_id = waiting_run(await run(client, code))
        server.upstream.released.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while await server.app.suspended_runs.state(run_id) != "ended":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "went" in text_of(await resume(client, run_id))
        assert server.app.gateway.approvals.pending() == []
    assert server.made == ["wait"]


async def test_client_that_disconnects_before_a_question_cancels_the_script(
    server: DurableServer, calls: list[Any]
) -> None:
    server.upstream.released.clear()
    server.upstream.called.clear()
    server.upstream.functions["wait"] = server.upstream.wait
    code = 'await tools.github.wait({}); await tools.github.createIssue({ title: "x" });'
    async with server.client() as client:
        running = asyncio.create_task(run(client, code))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await server.upstream.called.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: not server.app.kernel.active)
    server.upstream.released.set()
    assert server.made == ["wait"]
    assert server.app.gateway.approvals.pending() == []


async def test_waiting_script_leaves_its_process_to_other_runs(tmp_path: Path) -> None:
    async with serving(tmp_path, max_processes=1) as server, server.client() as client:
        run_id = waiting_run(await run(client))
        assert text_of(await run(client, "return 1;")) == "1"
        decide(server, run_id)
        assert text_of(await resume(client, run_id)) == RESULT
        assert server.made == ["list_issues", "create_issue"]


async def test_stored_script_is_encrypted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        run_id = waiting_run(await run(client, f"const secret = 'a secret value';{SCRIPT}"))
        database = (await server.app.storage.store())._database
        rows = [
            *await database.scan("SELECT data FROM checkpoint_parts"),
            *await database.scan("SELECT question FROM pending_calls"),
            *await database.scan("SELECT answer FROM recorded_calls"),
        ]
        assert len(rows) == 3
        assert "secret" not in str(rows)
        assert "title" not in str(rows)
        await resume(client, run_id, cancel=True)
        assert await database.scan("SELECT run_id FROM recorded_calls") == []
