"""Suspended runs get the results of their pending calls over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
from starlette.types import ASGIApp
from tests.support.stalls import LoopStalls, repeat_on_stall

import hutch
from hutch.app.app import App
from hutch.http.auth import AccessControl
from hutch.kernel.durable import checkpoint
from hutch.kernel.durable.background_runs import MAX_CONTINUING
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import Kernel
from hutch.protocols.runs.resume import CALLS_PER_MINUTE
from hutch.protocols.toolscript.gateway.stored_approvals import suspend_until_approved
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import RunHandle
from hutch.session.suspension import Answer
from hutch.session.tools.provider import Provider
from hutch.settings import Settings


def later(token: str) -> hutch.Deferred:
    return hutch.Deferred(token)


def ask() -> str:
    raise hutch.Suspend("a person")


def approve() -> str:
    raise suspend_until_approved("shop", "buy", {})


def double(n: int) -> int:
    return 2 * n


released = asyncio.Event()


async def hold() -> None:
    await released.wait()


TOOLS = [Provider.of(later, ask, approve, double, hold)]


class Server:
    def __init__(self, kernel: Kernel, runs: SuspendedRuns, client: httpx2.AsyncClient, web: ASGIApp) -> None:
        self.kernel, self.runs, self.client, self.web = kernel, runs, client, web

    async def suspended(
        self, code: str, protocol: str = "execbox", owner: str = "operator"
    ) -> tuple[str, hutch.PendingCall]:
        """Runs code until it waits for a call. Returns the id of the run and the pending call."""
        execution = Execution(
            code=code,
            profile=profile_for("quickjs"),
            limits=self.kernel.limits({"timeout_ms": 60_000}),
            providers=TOOLS,
            protocol=protocol,
            owner=owner,
        )
        result = await self.kernel.run(execution)
        (call,) = result.pending_calls
        return result.run_id, call

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        response = await self.client.post(path, json=body)
        return response.status_code, response.json()

    def client_at(self, address: str) -> httpx2.AsyncClient:
        """Returns a client with this address. Each address may send only a limited number of wrong tokens."""
        transport = httpx2.ASGITransport(self.web, raise_app_exceptions=False, client=(address, 1))
        return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
async def server(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    settings = Settings(home=str(tmp_path_factory.mktemp("home")))
    app = await App.create(settings)
    try:
        await app.storage.start()
        access = AccessControl(settings, app.storage)
        web = app.http_app(access)

        async def tools() -> list[Provider]:
            return TOOLS

        runs = app.suspended_runs
        runs.background.provide_tools = tools
        runs.background.continued_protocols = frozenset({"execbox"})
        transport = httpx2.ASGITransport(web, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Server(app.kernel, runs, client, web)
    finally:
        await app.close()


async def test_token_delivers_one_result_and_the_run_continues(server: Server) -> None:
    run_id, _ = await server.suspended("return await tools.later({token: 'secret'})")
    for body in ({}, {"result": 1, "error": "x"}, {"error": 1}, {"value": 1}):
        assert (await server.post("/calls/secret", body))[0] == 400
    assert (await server.post("/calls/other", {"result": 1}))[0] == 404
    # This body is invalid, but the server does not read the body of a request without a valid token. So the
    # status is 404.
    assert (await server.post("/calls/other", {"value": 1}))[0] == 404
    assert (await server.post(f"/calls/{'x' * 2_000}", {"result": 1}))[0] == 404
    assert await server.post("/calls/secret", {"result": {"answer": 42}}) == (200, {"ok": True})
    result = await server.runs.ends.wait(run_id, "operator", [], lambda: False)
    assert result is not None
    assert result.result == {"answer": 42}
    assert (await server.post("/calls/secret", {"result": 1}))[0] == 404


async def test_run_is_resumed_with_results(server: Server) -> None:
    run_id, call = await server.suspended("return [await tools.ask({})]")
    waiting = (await server.client.get("/runs?status=suspended&protocol=execbox")).json()
    (entry,) = (each for each in waiting["runs"] if each["run_id"] == run_id)
    assert (entry["status"], entry["outcome"]) == ("suspended", "suspended")
    assert waiting["counts"]["suspended"] == len(waiting["runs"])
    assert waiting["counts"]["failed"] == len((await server.client.get("/runs?status=failed")).json()["runs"])
    call_id = call.call_id
    detail = (await server.client.get(f"/runs/{run_id}")).json()
    names = {"call_id": call_id, "provider": "tools", "tool": "ask"}
    assert detail["pending_calls"] == [
        {**names, "message": "a person", "is_question": False, "has_answer": False}
    ]
    assert detail["tools_elsewhere"] is False
    assert "waits" in detail["replay"]["reason"]
    path = f"/runs/{run_id}/resume"
    status, body = await server.post(path)
    assert (status, body["error"]["reason"]) == (404, "unknown_call"), body
    assert call_id in body["error"]["message"]
    status, body = await server.post(path, {"results": {"c9": 1}})
    assert (status, body["error"]["reason"]) == (404, "unknown_call")
    status, body = await server.post(path, {"results": {call_id: 1}})
    assert status == 400, body
    assert f"results.{call_id}" in body["error"]["message"]
    assert (await server.post(path, {"results": [1]}))[0] == 400
    status, body = await server.post(f"{path}?wait=true", {"results": {call_id: "yes"}})
    assert (status, body["result"]) == (200, ["yes"]), body
    status, body = await server.post(path, {"results": {call_id: "yes"}})
    assert (status, body["error"]["reason"]) == (409, "checkpoint_ended")
    assert (await server.post("/runs/unknown/resume"))[0] == 404


async def test_record_of_a_continued_run_has_the_part_before(server: Server) -> None:
    code = "console.log('before', await tools.double({n: 2})); const x = await tools.ask({}); console.log(x)"
    run = RunHandle(record_level="full")
    execution = Execution(
        code=code, profile=profile_for("quickjs"), providers=TOOLS, protocol="execbox", owner="operator"
    )
    (call,) = (await server.kernel.run(execution, run)).pending_calls
    assert (await server.client.get(f"/runs/{run.id}")).json()["status"] == "suspended"
    body = {"results": {call.call_id: "yes"}}
    assert (await server.post(f"/runs/{run.id}/resume?wait=true", body))[0] == 200
    recorded = (await server.client.get(f"/runs/{run.id}")).json()
    calls = [(each["tool"], each["input"], each["output"]) for each in recorded["tool_calls"]]
    assert calls == [("double", {"n": 2}, 4), ("ask", {}, "yes")]
    assert [log["line"] for log in recorded["logs"]] == ["before 4", "yes"]
    assert recorded["replay"]["recorded"] is True
    _, replayed = await server.post(f"/runs/{run.id}/replay?wait=true", {"mode": "recorded"})
    assert replayed["outcome"] == "ok"


async def test_approval_cannot_be_bypassed_with_a_result(server: Server) -> None:
    run_id, call = await server.suspended("return await tools.approve({})")
    assert (await server.post(f"/calls/{call.token}", {"result": "yes"}))[0] == 404
    status, body = await server.post(f"/runs/{run_id}/resume", {"results": {call.call_id: "yes"}})
    assert (status, body["error"]["reason"]) == (409, "approval_needed")


async def test_run_of_another_version_is_refused_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "bundle_digest", lambda: "0" * 64)
        run_id, call = await server.suspended("return await tools.ask({})")
    status, body = await server.post(f"/runs/{run_id}/resume", {"results": {call.call_id: "yes"}})
    assert (status, body["error"]["reason"]) == (409, "checkpoint_incompatible")
    (pending,) = (await server.client.get(f"/runs/{run_id}")).json()["pending_calls"]
    assert pending["has_answer"] is False


async def test_run_of_a_program_is_left_to_the_program(server: Server) -> None:
    run_id, call = await server.suspended("return await tools.later({token: 'python'})", "python")
    status, body = await server.post(f"/runs/{run_id}/resume", {"results": {call.call_id: "yes"}})
    assert (status, body["error"]["reason"]) == (409, "tools_elsewhere")
    assert (await server.post("/calls/python", {"result": 7}))[0] == 200
    await server.runs.background.start_answered_runs()
    assert await server.runs.ends.result(run_id, "operator") is None


async def guesses_until_refused(guess: Callable[[int], Awaitable[int]]) -> int:
    """Guesses tokens until the server answers 429. Returns the number of guesses before. Allows for the
    guesses that become free meanwhile.
    """
    began = time.monotonic()
    statuses = [await guess(0)]
    while statuses[-1] != 429 and len(statuses) < 10 * CALLS_PER_MINUTE:
        statuses.append(await guess(len(statuses)))
    free = (time.monotonic() - began) * CALLS_PER_MINUTE / 60
    assert statuses[-1] == 429
    assert {*statuses[:-1]} == {404}
    assert len(statuses) - 1 <= CALLS_PER_MINUTE + free + 1
    return len(statuses) - 1


async def test_guesses_of_tokens_are_limited(server: Server) -> None:
    async def guess(number: int) -> int:
        return (await server.post(f"/calls/{number}", {"result": 1}))[0]

    await guesses_until_refused(guess)


async def test_addresses_of_one_ipv6_network_share_the_limit_on_guesses(server: Server) -> None:
    async def guess(number: int) -> int:
        async with server.client_at(f"2001:db8::{number:x}") as client:
            return (await client.post(f"/calls/{number}", json={"result": 1})).status_code

    assert await guesses_until_refused(guess) >= CALLS_PER_MINUTE


@repeat_on_stall
async def test_large_results_of_calls_do_not_stall_the_server(server: Server) -> None:
    """Encoding a result of 8 MB of quotes in one step takes 50 to 100 ms. The run gets six such results."""
    tokens = [f"large{time.time_ns()}-{n}" for n in range(6)]
    code = (
        f"const all = await Promise.all({tokens}.map((token) => tools.later({{token}}))); return all.length"
    )
    execution = Execution(
        code=code,
        profile=profile_for("quickjs"),
        limits=server.kernel.limits({"memory_limit_bytes": 500_000_000, "timeout_ms": 60_000}),
        providers=TOOLS,
        protocol="execbox",
        owner="operator",
    )
    waiting = await server.kernel.run(execution)
    assert len(waiting.pending_calls) == len(tokens)
    body = b'{"result":"%s"}' % (b'\\"' * 4_000_000)
    headers = {"content-type": "application/json"}
    async with server.client_at("10.0.0.1") as client, LoopStalls() as stalls:
        for token in tokens:
            response = await client.post(f"/calls/{token}", content=body, headers=headers)
            assert response.status_code == 200, response.text
        stalls.assert_short("to store the results")
        result = await server.runs.ends.wait(waiting.run_id, "operator", [], lambda: False)
    assert result is not None
    assert result.result == len(tokens), result
    stalls.assert_short("to deliver the results")


async def test_results_count_towards_the_size_of_suspended_runs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, call = await server.suspended("return (await tools.later({token: 'counted'})).length")
    monkeypatch.setattr("hutch.kernel.durable.calls.pending_calls.MAX_BYTES_OF_RUN", 1_000_000)
    client = server.client_at("10.0.0.2")
    for path, body in (
        ("/calls/counted", {"result": "x" * 1_000_000}),
        (f"/runs/{run_id}/resume", {"results": {call.call_id: "x" * 1_000_000}}),
    ):
        refused = await client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (409, "too_many_suspended")
    # Refused results do not count towards the limit, so this result is accepted.
    assert (await client.post("/calls/counted", json={"result": "x" * 600_000})).status_code == 200
    result = await server.runs.ends.wait(run_id, "operator", [], lambda: False)
    assert result is not None
    assert result.result == 600_000


async def test_continued_runs_of_one_owner_leave_room_for_those_of_others(server: Server) -> None:
    """The continued runs of the owner "hog" wait for a tool. Without shares, these runs would keep all places
    until their time limit.
    """
    hogs = [
        await server.suspended("await tools.ask({}); await tools.hold({})", owner="hog")
        for _ in range(MAX_CONTINUING + 1)
    ]
    other, call = await server.suspended("return await tools.ask({})", owner="other")
    answer = Answer(result_json=b'"yes"')
    try:
        for run_id, asked in hogs:
            await server.runs.background.continue_with(run_id, "hog", {asked.call_id: answer})
        await server.runs.background.continue_with(other, "other", {call.call_id: answer})
        async with asyncio.timeout(30):
            result = await server.runs.ends.wait(other, "other", [], lambda: False)
        assert result is not None
        assert result.result == "yes"
    finally:
        released.set()
    for run_id, _ in hogs:
        end = await server.runs.ends.wait(run_id, "hog", [], lambda: False)
        assert end is not None
        assert end.ok, end
