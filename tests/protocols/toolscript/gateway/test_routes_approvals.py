"""Routes for approvals: waiting calls, decisions, and the runs of the calls."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from tests.protocols.toolscript.fakes import FakeToolSource, GatewayHarness, events, listening
from tests.protocols.toolscript.samples import SCRIPT_PATHS, TOOLS
from tests.support.processes import TIMEOUT_SECONDS


@pytest.fixture
async def asking() -> GatewayHarness:
    return GatewayHarness(FakeToolSource(*TOOLS), {"mail": "ask", "github__create_issue": "deny"})


async def test_tool_denied_by_policy_is_not_called(asking: GatewayHarness) -> None:
    answer = await asking.call("github__create_issue", {"title": "x"})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert (error["server"], error["tool"], error["code"]) == ("github", "create_issue", "denied")
    assert error["message"] == "The policy denies github__create_issue"
    assert asking.upstream.calls == []


async def test_call_waits_for_approval_over_http(asking: GatewayHarness) -> None:
    calling = asyncio.create_task(asking.call("mail__send", {"to": "x"}))
    [waiting] = await asking.pending()
    assert (
        waiting.items()
        >= {
            "server": "mail",
            "tool": "send",
            "arguments": {"to": "x"},
            "run": None,
            "seconds": TIMEOUT_SECONDS,
        }.items()
    )
    assert (await asking.get(f"/approvals/{waiting['id']}")).json() == waiting
    assert asking.upstream.calls == []
    decided = await asking.decide(waiting["id"], decision="allow")
    assert decided.json() == {"id": waiting["id"], "decision": "allow"}
    assert (await calling).json()["tool"] == "send"
    assert (await asking.get("/approvals")).json() == []
    assert (await asking.decide(waiting["id"], decision="allow")).status_code == 409


async def test_denied_call_fails_with_the_reason(asking: GatewayHarness) -> None:
    calling = asyncio.create_task(asking.call("mail__send"))
    [waiting] = await asking.pending()
    await asking.decide(waiting["id"], decision="deny", reason="not to them")
    answer = await calling
    assert answer.status_code == 403
    assert answer.json()["error"]["message"] == "The call of mail__send was denied: not to them"
    assert asking.upstream.calls == []


async def test_call_is_denied_after_the_timeout() -> None:
    harness = GatewayHarness(FakeToolSource(*TOOLS), {"*": "ask"}, seconds=0.01)
    answer = await harness.call("mail__send")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        403,
        "mail__send was not approved within 0.01 s",
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, 'decision: expected "allow" or "deny", got nothing'),
        ({"decision": "yes"}, 'decision: expected "allow" or "deny", got "yes"'),
        ({"decision": True}, 'decision: expected "allow" or "deny", got true'),
        ({"decision": "allow", "reason": 1}, "reason: expected a string, got a number"),
        ({"decision": "allow", "remember": 1}, "remember: expected true or false, got a number"),
    ],
    ids=str,
)
async def test_invalid_decision_leaves_the_call_waiting(
    asking: GatewayHarness, body: dict[str, Any], message: str
) -> None:
    calling = asyncio.create_task(asking.call("mail__send"))
    [waiting] = await asking.pending()
    answer = await asking.decide(waiting["id"], **body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
    await asking.decide(waiting["id"], decision="allow")
    assert (await calling).status_code == 200


async def test_unknown_approval_returns_404(asking: GatewayHarness) -> None:
    assert (await asking.decide("x", decision="allow")).status_code == 404
    assert (await asking.get("/approvals/x")).status_code == 404


async def test_large_arguments_are_complete_only_for_a_single_approval(asking: GatewayHarness) -> None:
    text = "x" * 100_000
    calling = asyncio.create_task(asking.call("mail__send", {"text": text}))
    [waiting] = await asking.pending()
    assert (waiting["arguments"], waiting["argumentsBytes"]) == (None, 100_011)
    assert waiting["argumentsBegin"].startswith('{"text":"xxx')
    assert (await asking.get(f"/approvals/{waiting['id']}")).json()["arguments"] == {"text": text}
    await asking.decide(waiting["id"], decision="deny")
    await calling


async def test_event_stream_reports_approvals(asking: GatewayHarness) -> None:
    async with listening(asking) as url:
        waiting = asyncio.create_task(asking.call("mail__send", {"to": "x"}))
        [approval] = await asking.pending()
        async with events(url) as next_event:
            assert await next_event() == ("asked", approval)
            await asking.decide(approval["id"], decision="allow")
            assert await next_event() == ("allowed", approval)
        assert (await waiting).status_code == 200


async def test_event_stream_ends_when_the_server_drains(asking: GatewayHarness) -> None:
    client = httpx2.AsyncClient(timeout=TIMEOUT_SECONDS)
    async with listening(asking) as url, client, client.stream("GET", f"{url}/approvals/events") as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == ": approvals"
        # When the server drains, it ends the stream and does not wait for it.
        assert await asking.access.drain(TIMEOUT_SECONDS) is True
        assert [line async for line in lines if line] == []


async def test_call_can_be_approved_while_the_server_drains(asking: GatewayHarness) -> None:
    calling = asyncio.create_task(asking.call("mail__send"))
    [waiting] = await asking.pending()
    draining = asyncio.create_task(asking.access.drain(TIMEOUT_SECONDS))
    await asyncio.sleep(0)
    assert (await asking.decide(waiting["id"], decision="allow")).status_code == 200
    assert (await calling).status_code == 200
    assert await draining is True


@pytest.mark.parametrize("path", ["/tools/mail__send", "/approvals/x"])
@pytest.mark.parametrize("header", [{"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}], ids=str)
async def test_body_must_be_json(asking: GatewayHarness, path: str, header: dict[str, str]) -> None:
    answer = await asking.client.post(path, content=b"{}", headers=header)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "invalid_request")
    assert asking.upstream.calls == []


async def test_wrong_method_of_an_approval_returns_the_allowed_ones(asking: GatewayHarness) -> None:
    answer = await asking.client.delete("/approvals/x")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert answer.json()["error"]["code"] == "METHOD_NOT_ALLOWED"


# --- runs ---


async def test_run_id_is_trusted_only_from_this_process(asking: GatewayHarness) -> None:
    body = {"content": b"{}"}
    held: list[str] = []
    asking.gateway.approvals.on_wait_begin.append(lambda run, _: held.append(run))
    async with asking.connect_from_jail("run1") as script:
        headers = {"X-Hutch-Run": "forged"}
        inside = asyncio.create_task(script.post("/tools/mail__send", headers=headers, **body))
        outside = asyncio.create_task(asking.call("mail__send", **{"X-Hutch-Run": "run1"}))
        waiting = await asking.pending(2)
        assert sorted(each["run"] for each in waiting) == ["remote:run1", "run1"]
        assert sorted(held) == ["remote:run1", "run1"]
        for each in waiting:
            await asking.decide(each["id"], decision="allow")
        await asyncio.gather(inside, outside)


@pytest.mark.parametrize("origin", ["this process", "another process"])
async def test_script_cannot_approve_its_own_calls(asking: GatewayHarness, origin: str) -> None:
    remote = asking.connect(**{"X-Hutch-Run": "r"})
    async with asking.connect_from_jail("r") if origin == "this process" else remote as client:
        calling = asyncio.create_task(client.post("/tools/mail__send", content=b"{}"))
        [waiting] = await asking.pending()
        for path in ("/approvals", "/approvals/events", f"/approvals/{waiting['id']}", "/status"):
            assert (await client.get(path)).status_code == 403, path
        answer = await client.post(f"/approvals/{waiting['id']}", json={"decision": "allow"})
        assert answer.status_code == 403
        assert asking.upstream.calls == []
        for path in SCRIPT_PATHS:
            assert (await client.get(path)).status_code == 200, path
        await asking.decide(waiting["id"], decision="deny")
        assert (await calling).status_code == 403
