from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import Any

import pytest
from tests.doors.toolscript.scripted import Door, Given, Server, Upstream, fails, gives, listening
from tests.doors.toolscript.sets import READ, SCHEMA, SERVERS, TOOLS
from tests.processes import PATIENCE


@pytest.fixture
async def door() -> Door:
    return Door(Upstream(*TOOLS, servers=SERVERS))


# --- how things are ---


async def test_health_has_the_state_of_the_search(door: Door) -> None:
    assert (await door.get("/health")).json() == {
        "status": "ok",
        "search": {"ready": False, "semantic": False},
    }
    await door.gateway.catalog()
    assert (await door.get("/health")).json() == {
        "status": "ok",
        "search": {"ready": True, "semantic": False},
    }


async def test_it_is_ready_when_no_server_is_being_connected_to(door: Door) -> None:
    answer = await door.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "connecting": []})
    door.upstream.described = (Server("slow", state="connecting"), Server("lazy", state="idle"))
    answer = await door.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "connecting": ["slow"]})


async def test_the_status_tells_of_servers_collisions_and_faults() -> None:
    rules = {"github": "ask", "githb": "deny", "broken": "deny"}
    door = Door(Upstream(*TOOLS, Given("mail", "send"), servers=SERVERS), rules)
    status = (await door.get("/status")).json()
    assert status["status"] == "ok"
    assert status["revision"] == "r1"
    assert status["uptimeSeconds"] >= 0
    assert status["tools"] == 4
    assert status["servers"] == [
        {
            "name": "github",
            "title": "GitHub",
            "state": "connected",
            "error": None,
            "warnings": ["two tools were left out"],
            "tools": 3,
        },
        {"name": "mail", "title": None, "state": "connected", "error": None, "warnings": [], "tools": 1},
        {
            "name": "broken",
            "title": None,
            "state": "failed",
            "error": "there is no program of this name",
            "warnings": [],
            "tools": 0,
        },
    ]
    assert status["collisions"] == [
        {"server": "github", "name": "getUser", "became": {"get_user": "getUser", "get-user": "getUser_2"}}
    ]
    assert [(each["tool"], each["message"][:20]) for each in status["problems"]] == [
        ("send", "its server has two t"),
        ("send", 'inputSchema: "objekt'),
    ]
    assert status["approvals"] == {"pending": 0, "rules": rules, "unmatchedRules": ["githb"]}


async def test_the_status_does_not_wait_for_a_slow_server(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.doors.toolscript.gateway.STATUS_SECONDS", 0.01)

    async def tools() -> list[Given]:
        await door.upstream.go.wait()
        return door.upstream.given

    monkeypatch.setattr(door.upstream, "tools", tools)
    status = (await door.get("/status")).json()
    assert (status["tools"], len(status["servers"])) == (0, 3)
    door.upstream.go.set()
    assert len((await door.get("/tools")).json()) == 4


async def test_servers_are_listed(door: Door) -> None:
    assert (await door.get("/servers")).json() == [
        {"name": "github", "title": "GitHub", "instructions": "Be careful."},
        {"name": "mail", "title": None, "instructions": None},
        {"name": "broken", "title": None, "instructions": None},
    ]


async def test_tools_are_listed_and_filtered(door: Door) -> None:
    listed = (await door.get("/tools")).json()
    assert listed[0] == {
        "serverName": "github",
        "toolName": "create_issue",
        "qualifiedName": "github__create_issue",
        "scriptName": "tools.github.createIssue",
        "description": "Creates an issue.",
        "inputSchema": SCHEMA,
        "outputSchema": SCHEMA,
    }
    names = [each["qualifiedName"] for each in (await door.get("/tools?filter=mail,github__get-user")).json()]
    assert names == ["github__get-user", "mail__send"]
    assert (await door.get("/tools?filter=nobody")).json() == []


async def test_a_schema_too_deep_to_be_written_does_not_keep_the_others_from_being_listed() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"anyOf": [deep]}
    door = Door(Upstream(Given("a", "deep", None, deep), *TOOLS))
    listed = (await door.get("/tools")).json()
    assert (listed[0]["inputSchema"], len(listed)) == (None, 5)
    assert (await door.get("/runtime/tools.ts")).status_code == 200


# --- the module ---


async def test_the_module_is_typescript_in_all_its_forms(door: Door) -> None:
    module = await door.get("/runtime/tools.ts?_t=123")
    assert module.headers["content-type"] == "application/typescript"
    assert "export const tools: Tools = connect([" in module.text
    compact = await door.get("/runtime/tools.ts?compact=true")
    assert (
        "    createIssue(args: { title: string }): Promise<{ title: string }>; // Creates an issue.\n"
        in compact.text
    )
    full = await door.get("/runtime/tools.d.ts")
    assert full.text.endswith("export declare const tools: Tools;\n")
    assert (await door.get("/runtime/tools.d.ts?compact=1")).text == compact.text
    mail = (await door.get("/runtime/tools.ts?filter=mail")).text
    assert "mail: Mail;" in mail
    assert "github" not in mail


async def test_without_tools_the_module_is_empty() -> None:
    assert (await Door(Upstream()).get("/runtime/tools.ts")).text.startswith("export const tools = {};\n")


async def test_a_module_is_made_once_and_anew_when_the_tools_change(door: Door) -> None:
    first = await door.gateway.module()
    assert await door.gateway.module() is first
    assert door.upstream.listed == 1
    answer = await door.get("/runtime/tools.ts", **{"If-None-Match": first.etag})
    assert (answer.status_code, answer.content) == (304, b"")
    door.upstream.change(Given("github", "other"))
    changed = await door.get("/runtime/tools.ts", **{"If-None-Match": first.etag})
    assert changed.status_code == 200
    assert "other(args" in changed.text
    assert door.upstream.listed == 2


async def test_many_filters_are_not_all_kept(door: Door) -> None:
    for number in range(200):
        await door.gateway.module(f"mail,x{number}")
    assert len(door.gateway._snapshot.texts) <= 32  # type: ignore[union-attr]


# --- search ---


async def test_a_search_tells_tool_score_and_reason(door: Door) -> None:
    [found] = (await door.get("/search?q=creat+issue&limit=1")).json()
    assert found["tool"]["toolId"] == found["tool"]["qualifiedName"] == "github__create_issue"
    assert found["tool"]["inputSchema"] == SCHEMA
    assert 0.35 <= found["score"] <= 1
    assert found["scoreBreakdown"].keys() == {"semantic", "fuzzy", "lexical", "combined"}
    assert "in its name" in found["reason"]
    assert (await door.get("/search?q=kubernetes")).json() == []
    assert (await door.get("/search/stats")).json()["toolsIndexed"] == 4


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "q: expected what to search for"),
        ("q=%20", "q: expected what to search for"),
        ("q=x&limit=0", "limit: expected a number from 1 to 100, got '0'"),
        ("q=x&limit=many", "limit: expected a number from 1 to 100, got 'many'"),
        ("q=x&threshold=2", "threshold: expected a number from 0 to 1, got '2'"),
        ("q=x&threshold=nan", "threshold: expected a number from 0 to 1, got 'nan'"),
    ],
)
async def test_a_search_for_nothing_or_with_odd_numbers_is_refused(
    door: Door, query: str, message: str
) -> None:
    answer = await door.get(f"/search?{query}")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


async def test_without_full_text_search_all_else_works(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str, **__: object) -> Any:
        raise sqlite3.OperationalError("no such module: fts5")

    monkeypatch.setattr("hutch.doors.toolscript.search.sqlite3.connect", refuse)
    answer = await door.get("/search?q=x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_search")
    assert "no such module: fts5" in answer.json()["error"]["message"]
    assert (await door.get("/search/stats")).status_code == 503
    assert (await door.call("mail__send")).status_code == 200


# --- calls ---


@pytest.mark.parametrize("value", [None, 0, "0", [], {"a": [1, "ü\u2028"]}, "\ud800"], ids=repr)
async def test_a_call_gives_the_tools_value(door: Door, value: Any) -> None:
    door.upstream.does["send"] = gives(value)
    answer = await door.call("mail__send", {"to": "x"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert json.loads(answer.content) == value
    assert door.upstream.calls == [("mail", "send", {"to": "x"})]


async def test_a_call_without_a_body_has_no_arguments(door: Door) -> None:
    assert (await door.call("mail__send", b"")).status_code == 200
    assert door.upstream.calls == [("mail", "send", {})]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("tool_error", 502),
        ("rpc_error", 502),
        ("not_connected", 502),
        ("lost", 502),
        ("timeout", 504),
        ("invalid_arguments", 400),
    ],
)
async def test_a_failure_has_its_status_and_all_that_the_server_said(
    door: Door, kind: str, status: int
) -> None:
    door.upstream.does["send"] = fails(kind, "no such mailbox", {"code": 7})
    answer = await door.call("mail__send")
    assert answer.status_code == status
    assert answer.json()["error"] == {
        "code": kind,
        "message": "no such mailbox",
        "server": "mail",
        "tool": "send",
        "details": {"code": 7},
    }


async def test_an_unknown_tool_is_told_with_those_that_may_be_meant(door: Door) -> None:
    answer = await door.call("github__creat_isue")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["server"], error["tool"]) == ("github", "creat_isue")
    assert error["message"] == "There is no tool github__creat_isue. Did you mean github__create_issue?"
    assert error["details"] == {"suggestions": ["github__create_issue"]}
    assert (await door.call("zzz")).json()["error"]["message"] == "There is no tool zzz"


async def test_tools_of_a_server_that_failed_are_told_as_such_without_its_secrets(door: Door) -> None:
    answer = await door.call("broken__anything")
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == (
        "There is no tool broken__anything now: the server broken is not connected"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "body: malformed JSON"),
        (b"[1]", "body: expected an object, got an array"),
        (b"null", "body: expected an object, got null"),
        (b'"x"', "body: expected an object, got a string"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "body: $ is nested deeper than 128 levels"),
    ],
)
async def test_a_body_that_is_no_object_is_refused(door: Door, body: bytes, message: str) -> None:
    answer = await door.call("mail__send", body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["server"], error["tool"]) == ("mail", "send")
    assert error["message"].startswith(message)
    assert door.upstream.calls == []


async def test_a_body_too_large_is_refused() -> None:
    door = Door(Upstream(*TOOLS), max_body_bytes=100)
    answer = await door.call("mail__send", {"x": "y" * 100})
    assert (answer.status_code, answer.json()["error"]["message"]) == (413, "body: the most is 100 bytes")


async def test_a_result_that_is_no_json_is_a_failure_of_the_server(door: Door) -> None:
    door.upstream.does["send"] = gives(float("nan"))
    answer = await door.call("mail__send")
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == "The result of mail__send cannot be written as JSON: $ is NaN"


async def test_a_tool_that_is_gone_by_now_is_not_called(door: Door) -> None:
    await door.call("mail__send")
    door.upstream.change(*TOOLS[:3])
    assert (await door.call("mail__send")).status_code == 404
    assert len(door.upstream.calls) == 1


async def test_a_call_ends_when_its_client_goes(door: Door) -> None:
    door.upstream.does["send"] = door.upstream.wait
    async with listening(door) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /tools/mail__send HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        )
        async with asyncio.timeout(PATIENCE):
            await door.upstream.called.wait()
            writer.close()
            await door.upstream.cancelled.wait()


async def test_a_call_that_outlasts_the_servers_patience_is_cut(door: Door) -> None:
    door.upstream.does["send"] = door.upstream.wait
    calling = asyncio.create_task(door.call("mail__send"))
    await door.upstream.called.wait()
    assert not await door.gate.drain(0.01)
    answer = await calling
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert (await door.call("mail__send")).status_code == 503
    assert (await door.get("/health")).json()["status"] == "draining"


# --- who may come in ---

PATHS = [*READ, "/status", "/approvals", "/approvals/events", "/approvals/x"]


async def test_the_token_guards_all_but_health_and_readiness() -> None:
    door = Door(Upstream(*TOOLS), api_key="secret")
    for path in PATHS:
        assert (await door.get(path)).status_code == 401, path
    assert (await door.call("mail__send")).status_code == 401
    assert (await door.decide("x", decision="allow")).status_code == 401
    assert (await door.get("/health")).status_code == 200
    assert (await door.get("/ready")).status_code == 200
    assert (await door.call("mail__send", Authorization="Bearer secret")).status_code == 200
    assert (await door.get("/tools", Authorization="Bearer secret")).status_code == 200


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}], ids=str)
async def test_pages_of_other_sites_are_kept_out(door: Door, headers: dict[str, str]) -> None:
    for path in PATHS:
        assert (await door.get(path, **headers)).status_code == 403, path
    assert (await door.call("mail__send", **headers)).status_code == 403
    assert door.upstream.calls == []
