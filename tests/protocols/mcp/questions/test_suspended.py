"""Runs of `run_code` that are suspended until a call has been approved by the client's user or by the
operator.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitResult, InputRequiredResult
from tests.protocols.mcp.durable_server import ALLOW, DENY, MODERN, DurableServer, person, serving
from tests.protocols.mcp.harness import serving as listening
from tests.protocols.mcp.harness import text_of
from tests.protocols.toolscript.fakes import returning
from tests.support.processes import TIMEOUT_SECONDS

from hutch.http.auth import AccessControl
from hutch.protocols.mcp.http import McpEndpoint
from hutch.protocols.mcp.run_code import ClientRun, CodeRunner
from hutch.protocols.mcp.server import HutchMcpServer
from hutch.protocols.toolscript.gateway.approvals import ApprovalAnswer
from hutch.settings import Settings

CODE = """
    const [issues, created] = await Promise.all([
        tools.github.listIssues({}), tools.github.createIssue({ title: "x" }),
    ]);
    return `${issues.length} and ${created.number}`;
"""
ARGUMENTS = {"code": CODE, "language": "javascript"}


async def call(client: Client, **more: Any) -> CallToolResult | InputRequiredResult:
    """Calls `run_code`. If the call asks questions, returns the questions and does not answer them."""
    return await client.session.call_tool("run_code", ARGUMENTS, allow_input_required=True, **more)


async def ask(client: Client) -> InputRequiredResult:
    answer = await call(client)
    assert isinstance(answer, InputRequiredResult), answer
    return answer


def answers(asked: InputRequiredResult, answer: ElicitResult = ALLOW) -> dict[str, Any]:
    return {
        "request_state": asked.request_state,
        "input_responses": dict.fromkeys(asked.input_requests or {}, answer),
    }


async def test_modern_client_is_asked_by_input_required(server: DurableServer, calls: list[Any]) -> None:
    user = person(ALLOW)
    async with server.client(elicitation_callback=user) as client:
        assert text_of(await client.call_tool("run_code", ARGUMENTS)) == "1 and 7\n\n(2 tool calls)"
    assert user.asked == ['May create_issue of github be called?\n{"title":"x"}']
    assert sorted(server.made) == ["create_issue", "list_issues"]


async def test_denied_call_fails_in_the_code(server: DurableServer, calls: list[Any]) -> None:
    async with server.client(elicitation_callback=person(DENY)) as client:
        answer = await client.call_tool("run_code", ARGUMENTS)
    assert answer.is_error
    assert "github__create_issue was denied: the user declined" in text_of(answer)
    assert server.made == ["list_issues"]


async def test_each_decision_is_asked_for_when_the_run_needs_it(
    server: DurableServer, calls: list[Any]
) -> None:
    user = person(ALLOW)
    code = "for (const title of ['a', 'b']) await tools.github.createIssue({ title }); return 'both'"
    async with server.client(elicitation_callback=user) as client:
        answer = await client.call_tool("run_code", {**ARGUMENTS, "code": code, "format": "json"})
    assert answer.structured_content is not None
    assert answer.structured_content["result"] == "both"
    assert [message.splitlines()[1] for message in user.asked] == ['{"title":"a"}', '{"title":"b"}']


async def test_answer_continues_the_run_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as first, first.client(elicitation_callback=person(ALLOW)) as client:
        asked = await ask(client)
        assert first.made == ["list_issues"]
    async with serving(tmp_path) as second, second.client(elicitation_callback=person(ALLOW)) as client:
        answer = await call(client, **answers(asked))
        assert text_of(answer) == "1 and 7\n\n(2 tool calls)"
        assert second.made == ["create_issue"]


async def test_decision_counts_once(
    server: DurableServer, calls: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hutch.approvals")
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        asked = await ask(client)
        assert "1 and 7" in text_of(await call(client, **answers(asked)))
        replayed = await call(client, **answers(asked))
        run_id = re.search(r"run (\S+) was decided", text_of(replayed))
        assert replayed.is_error
        assert run_id is not None
        assert "A decision counts once" in text_of(replayed)
        again = await client.call_tool("continue_run", {"run_id": run_id[1]})
        assert "1 and 7" in text_of(again)
    digest = hashlib.sha256(b'{"title":"x"}').hexdigest()
    (decision,) = [record.getMessage() for record in caplog.records if record.name == "hutch.approvals"]
    assert decision.startswith(f"the call of github__create_issue in run {run_id[1]} was decided: allow by")
    assert decision.endswith(f"MCP client of local (SHA-256 of its arguments: {digest})")
    assert sorted(server.made) == ["create_issue", "list_issues"]


async def test_state_belongs_to_its_caller_and_its_arguments(server: DurableServer, calls: list[Any]) -> None:
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        asked = await ask(client)
        state = asked.request_state
        assert state is not None
        altered = state[:-8] + ("A" if state[-8] != "A" else "B") + state[-7:]
        refused = [
            (ARGUMENTS, {**answers(asked), "request_state": altered}),
            ({**ARGUMENTS, "code": "return 1"}, answers(asked)),
        ]
        for arguments, retry in refused:
            with pytest.raises(MCPError, match="requestState: expected the value of the last"):
                await client.session.call_tool("run_code", arguments, allow_input_required=True, **retry)
        other = HutchMcpServer(server.app, owner="other")
        async with Client(other.server, mode=MODERN, elicitation_callback=person(ALLOW)) as stranger:
            with pytest.raises(MCPError, match="belongs to another call or caller"):
                await call(stranger, **answers(asked))
            run_id = server.app.gateway.approvals.pending()[0].run
            listed = await stranger.call_tool("continue_run", {"run_id": run_id})
            assert f"There is no suspended run {run_id}" in text_of(listed)
        other.close()
        unknown = await call(client, request_state=state, input_responses={"x": ALLOW})
        assert "inputResponses: expected results of elicitations for" in text_of(unknown)
        assert server.made == ["list_issues"]
        # None of these invalid answers was a decision, so the valid answer is still accepted.
        assert "1 and 7" in text_of(await call(client, **answers(asked)))


async def test_foreign_run_is_not_assigned_to_the_client_that_names_it(
    server: DurableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a run is assigned to a client, the client gets the run's questions, which show the arguments of the
    run's calls.
    """
    assigned: list[str | None] = []
    register = CodeRunner.registered

    def noting(runs: CodeRunner, run_id: str, run: ClientRun) -> Any:
        assigned.append(run.owner)
        return register(runs, run_id, run)

    monkeypatch.setattr(CodeRunner, "registered", noting)
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        asked = await ask(client)
        run_id = server.app.gateway.approvals.pending()[0].run
        assert assigned
        assert "other" not in assigned
        other = HutchMcpServer(server.app, owner="other")
        async with Client(other.server, mode=MODERN, elicitation_callback=person(ALLOW)) as stranger:
            for name in (run_id, "unknown"):
                told = await stranger.call_tool("continue_run", {"run_id": name})
                assert f"There is no suspended run {name}" in text_of(told)
        other.close()
        assert "other" not in assigned
        await call(client, **answers(asked, DENY))


async def test_expired_run_is_told(server: DurableServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        asked = await ask(client)
        later = "9999-01-01T00:00:00.000Z"
        monkeypatch.setattr("hutch.protocols.mcp.questions.suspended.now_rfc3339", lambda: later)
        answer = await call(client, **answers(asked))
    assert answer.is_error
    assert re.search(r"waited for a decision until 20\S+ and has expired", text_of(answer))


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_client_without_elicitation_is_told_how_to_continue(
    server: DurableServer, calls: list[Any], mode: str
) -> None:
    async with server.client(mode) as client:
        answer = await client.call_tool("run_code", ARGUMENTS)
        assert not answer.is_error
        text = text_of(answer)
        assert '- create_issue of github: {"title":"x"}' in text
        assert "web console" in text
        run_id = re.search(r"continue_run with run_id (\S+) ", text)
        assert run_id is not None
        waiting = await client.call_tool("continue_run", {"run_id": run_id[1], "format": "json"})
        assert waiting.structured_content is not None
        assert waiting.structured_content["error"]["code"] == "suspended"
        assert waiting.structured_content["waiting"][0]["tool"] == "create_issue"
        (approval,) = [each for each in server.app.gateway.approvals.pending() if each.run == run_id[1]]
        assert server.app.gateway.approvals.decide(approval.id, ApprovalAnswer("allow"))
        assert "1 and 7" in text_of(await client.call_tool("continue_run", {"run_id": run_id[1]}))


@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_end_of_a_suspended_run_is_told(server: DurableServer, end: str) -> None:
    async with server.client() as client:
        await client.call_tool("run_code", ARGUMENTS)
        run_id = server.app.gateway.approvals.pending()[-1].run
        assert run_id is not None
        if end == "cancelled":
            assert await server.app.suspended_runs.ends.cancel(run_id, "local")
        else:
            store = await server.app.storage.store()
            await store.write_behind.flush()
            assert await store.checkpoints.delete_suspended(run_id)
            await store.runs.end_suspended(run_id, "expired")
        answer = await client.call_tool("continue_run", {"run_id": run_id})
        assert answer.is_error
        assert end in text_of(answer)


async def test_older_client_is_asked_while_the_run_waits(server: DurableServer, calls: list[Any]) -> None:
    user = person(ALLOW)
    async with server.client("legacy", elicitation_callback=user) as client:
        assert "1 and 7" in text_of(await client.call_tool("run_code", ARGUMENTS))
    assert len(user.asked) == 1


async def test_both_eras_over_http(server: DurableServer, calls: list[Any]) -> None:
    endpoint = McpEndpoint(server.app, AccessControl(Settings()))
    async with listening(endpoint) as url:
        async with Client(url, elicitation_callback=person(ALLOW)) as client:
            assert client.session.protocol_version == MODERN
            assert "1 and 7" in text_of(await call(client, **answers(await ask(client))))
        async with Client(url, mode="legacy") as client:
            text = text_of(await client.call_tool("run_code", ARGUMENTS))
            assert f"{url.removesuffix('mcp')}#/approvals" in text


async def test_continue_run_is_listed_only_if_runs_can_be_suspended(
    server: DurableServer, tmp_path: Path
) -> None:
    async with serving(tmp_path, approvals={}) as plain, plain.client() as client:
        assert "continue_run" not in [tool.name for tool in (await client.list_tools()).tools]
    async with server.client() as client:
        assert "continue_run" in [tool.name for tool in (await client.list_tools()).tools]


async def test_client_is_told_that_the_server_died_while_it_made_the_approved_call(
    server: DurableServer, calls: list[Any]
) -> None:
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        asked = await ask(client)
        (call_id,) = asked.input_requests or {}
        run_id = server.app.gateway.approvals.pending()[-1].run
        assert run_id is not None
        store = await server.app.storage.store()
        past = "2000-01-01T00:00:00.000Z"
        assert await store.checkpoints.decide(run_id, call_id, "allow", None, "dead server", past)
        answer = await client.call_tool("continue_run", {"run_id": run_id})
    assert "the server stopped during the call, which may have had an effect" in text_of(answer)
    assert server.made == ["list_issues"]


async def test_run_has_one_result_for_several_requests(server: DurableServer, calls: list[Any]) -> None:
    server.upstream.functions["create_issue"] = server.upstream.wait
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        asked = await ask(client)
        run_id = server.app.gateway.approvals.pending()[-1].run
        server.upstream.called.clear()
        retrying = asyncio.create_task(call(client, **answers(asked)))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await server.upstream.called.wait()
        others = [asyncio.create_task(client.call_tool("continue_run", {"run_id": run_id})) for _ in range(2)]
        server.upstream.released.set()
        for answer in await asyncio.gather(retrying, *others):
            assert "1 and undefined" in text_of(answer)
    server.upstream.functions["create_issue"] = returning({"number": 7})


async def test_client_can_cancel_a_suspended_run(server: DurableServer) -> None:
    async with server.client() as client:
        await client.call_tool("run_code", ARGUMENTS)
        run_id = server.app.gateway.approvals.pending()[-1].run
        for message in (f"The run {run_id} was cancelled.", f"The run {run_id} has ended."):
            answer = await client.call_tool("continue_run", {"run_id": run_id, "cancel": True})
            assert text_of(answer) == message


@pytest.mark.parametrize(
    ("title", "problem"),
    [
        ("'x'.repeat(300000)", "have 300012 bytes of JSON; a call that needs an approval may have 262144"),
        ("'\\ud800'", "half of a surrogate pair"),
    ],
)
async def test_arguments_that_cannot_wait_for_an_approval_are_refused(
    server: DurableServer, calls: list[Any], title: str, problem: str
) -> None:
    """Every server keeps the arguments of a question in memory, and the store does not compress them. So
    their size is limited.
    """
    code = f"return await tools.github.createIssue({{title: {title}}}).catch((e) => e.message)"
    async with server.client(elicitation_callback=person(ALLOW)) as client:
        answer = await client.call_tool("run_code", {"code": code, "language": "javascript"})
    assert problem in text_of(answer)
    assert calls == []
