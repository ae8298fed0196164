"""Approvals by HTTP: calls that wait for one, who may give it, and for whose run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.doors.toolscript.scripted import Door, Upstream, events, listening
from tests.doors.toolscript.sets import READ, TOOLS
from tests.processes import PATIENCE


@pytest.fixture
async def asking() -> Door:
    return Door(Upstream(*TOOLS), {"mail": "ask", "github__create_issue": "deny"})


async def test_a_tool_that_the_policy_denies_is_not_called(asking: Door) -> None:
    answer = await asking.call("github__create_issue", {"title": "x"})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert (error["server"], error["tool"], error["code"]) == ("github", "create_issue", "denied")
    assert error["message"] == "The policy denies github__create_issue"
    assert asking.upstream.calls == []


async def test_a_call_waits_for_an_approval_by_http(asking: Door) -> None:
    calling = asyncio.create_task(asking.call("mail__send", {"to": "x"}))
    [waiting] = await asking.asked()
    assert (
        waiting.items()
        >= {
            "server": "mail",
            "tool": "send",
            "arguments": {"to": "x"},
            "run": None,
            "seconds": PATIENCE,
        }.items()
    )
    assert (await asking.get(f"/approvals/{waiting['id']}")).json() == waiting
    assert asking.upstream.calls == []
    decided = await asking.decide(waiting["id"], decision="allow")
    assert decided.json() == {"id": waiting["id"], "decision": "allow"}
    assert (await calling).json()["tool"] == "send"
    assert (await asking.get("/approvals")).json() == []
    assert (await asking.decide(waiting["id"], decision="allow")).status_code == 409


async def test_a_call_that_somebody_denies_fails_with_the_reason(asking: Door) -> None:
    calling = asyncio.create_task(asking.call("mail__send"))
    [waiting] = await asking.asked()
    await asking.decide(waiting["id"], decision="deny", reason="not to them")
    answer = await calling
    assert answer.status_code == 403
    assert answer.json()["error"]["message"] == "The call of mail__send was denied: not to them"
    assert asking.upstream.calls == []


async def test_nobodys_answer_is_a_no() -> None:
    door = Door(Upstream(*TOOLS), {"*": "ask"}, seconds=0.01)
    answer = await door.call("mail__send")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        403,
        "Nobody approved mail__send within 0.01 s",
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
async def test_a_decision_that_is_none_leaves_the_call_waiting(
    asking: Door, body: dict[str, Any], message: str
) -> None:
    calling = asyncio.create_task(asking.call("mail__send"))
    [waiting] = await asking.asked()
    answer = await asking.decide(waiting["id"], **body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
    await asking.decide(waiting["id"], decision="allow")
    assert (await calling).status_code == 200


async def test_an_unknown_approval_is_told(asking: Door) -> None:
    assert (await asking.decide("x", decision="allow")).status_code == 404
    assert (await asking.get("/approvals/x")).status_code == 404


async def test_large_arguments_are_shown_whole_to_who_asks_for_the_one(asking: Door) -> None:
    text = "x" * 100_000
    calling = asyncio.create_task(asking.call("mail__send", {"text": text}))
    [waiting] = await asking.asked()
    assert (waiting["arguments"], waiting["argumentsBytes"]) == (None, 100_011)
    assert waiting["argumentsBegin"].startswith('{"text":"xxx')
    assert (await asking.get(f"/approvals/{waiting['id']}")).json()["arguments"] == {"text": text}
    await asking.decide(waiting["id"], decision="deny")
    await calling


async def test_events_tell_of_approvals(asking: Door) -> None:
    async with listening(asking) as url:
        waiting = asyncio.create_task(asking.call("mail__send", {"to": "x"}))
        [approval] = await asking.asked()
        async with events(url) as heard:
            assert await heard() == ("asked", approval)
            await asking.decide(approval["id"], decision="allow")
            assert await heard() == ("allowed", approval)
        assert (await waiting).status_code == 200


# --- runs ---


async def test_the_run_of_a_call_is_known_from_this_process_only(asking: Door) -> None:
    body = {"content": b"{}"}
    held: list[str] = []
    asking.gateway.approvals.on_wait_begin.append(held.append)
    inside = asyncio.create_task(asking.connect(**{"hutch.run": "run1"}).post("/tools/mail__send", **body))
    outside = asyncio.create_task(asking.call("mail__send", **{"X-Hutch-Run": "run1"}))
    waiting = await asking.asked(2)
    assert sorted(each["run"] for each in waiting) == ["remote:run1", "run1"]
    assert sorted(held) == ["remote:run1", "run1"]
    for each in waiting:
        await asking.decide(each["id"], decision="allow")
    await asyncio.gather(inside, outside)


@pytest.mark.parametrize("by", ["scope", "header"])
async def test_a_script_cannot_approve_its_own_calls(asking: Door, by: str) -> None:
    client = asking.connect(**{"hutch.run": "r"}) if by == "scope" else asking.connect()
    headers = {"X-Hutch-Run": "r"} if by == "header" else {}
    calling = asyncio.create_task(client.post("/tools/mail__send", content=b"{}", headers=headers))
    [waiting] = await asking.asked()
    for path in ("/approvals", "/approvals/events", f"/approvals/{waiting['id']}", "/status"):
        assert (await client.get(path, headers=headers)).status_code == 403, path
    answer = await client.post(f"/approvals/{waiting['id']}", json={"decision": "allow"}, headers=headers)
    assert answer.status_code == 403
    assert asking.upstream.calls == []
    for path in READ:
        assert (await client.get(path, headers=headers)).status_code == 200, path
    await asking.decide(waiting["id"], decision="deny")
    assert (await calling).status_code == 403
