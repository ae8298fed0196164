from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.protocols.toolscript.fakes import (
    FakeServer,
    FakeTool,
    FakeToolSource,
    GatewayHarness,
    failing,
    listening,
    returning,
)
from tests.protocols.toolscript.samples import SCHEMA, SCRIPT_PATHS, SERVERS, TOOLS
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.stalls import LoopStalls, repeat_on_stall
from tests.support.waiting import eventually


@pytest.fixture
async def harness() -> GatewayHarness:
    return GatewayHarness(FakeToolSource(*TOOLS, servers=SERVERS))


# --- status ---


async def test_health_includes_the_search_state(harness: GatewayHarness) -> None:
    assert (await harness.get("/health")).json() == {
        "status": "ok",
        "search": {"ready": False, "semantic": False},
    }
    await harness.gateway.search("issue")
    assert (await harness.get("/health")).json() == {
        "status": "ok",
        "search": {"ready": True, "semantic": False},
    }


async def test_index_is_built_at_start_and_after_every_change(harness: GatewayHarness) -> None:
    async def wait_for_index(list_count: int) -> None:
        await eventually(
            lambda: harness.upstream.list_count == list_count and harness.gateway.health()["search"]["ready"]
        )

    indexing = asyncio.create_task(harness.gateway.keep_indexed())
    await wait_for_index(1)
    harness.upstream.change(FakeTool("mail", "send"))
    harness.upstream.change(FakeTool("mail", "receive"))
    await wait_for_index(2)
    assert (await harness.gateway.search("receive"))[0].entry.tool == "receive"
    assert harness.upstream.list_count == 2
    indexing.cancel()
    await asyncio.gather(indexing, return_exceptions=True)
    assert harness.upstream.on_change == []


@repeat_on_stall
async def test_change_of_thousands_of_tools_does_not_block_the_event_loop(harness: GatewayHarness) -> None:
    tools = [FakeTool("mail", f"send_{number}", "Sends a message.", SCHEMA) for number in range(5_000)]
    lists = harness.upstream.list_count
    async with LoopStalls() as stalls:
        indexing = asyncio.create_task(harness.gateway.keep_indexed())
        harness.upstream.change(*tools)
        await eventually(
            lambda: harness.upstream.list_count > lists and harness.gateway.health()["search"]["ready"]
        )
    indexing.cancel()
    await asyncio.gather(indexing, return_exceptions=True)
    stalls.assert_short()


async def test_ready_when_no_server_is_connecting(harness: GatewayHarness) -> None:
    answer = await harness.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "connecting": []})
    harness.upstream.server_list = (FakeServer("slow", state="connecting"), FakeServer("lazy", state="idle"))
    answer = await harness.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "connecting": ["slow"]})
    harness.upstream.server_list = (FakeServer("lost", state="connecting", was_tried=True),)
    assert (await harness.get("/ready")).status_code == 200, "a later reconnect"


async def test_ready_shows_names_of_servers_only_with_the_token() -> None:
    harness = GatewayHarness(FakeToolSource(*TOOLS), api_key="secret")
    harness.upstream.server_list = (FakeServer("slow", state="connecting"),)
    assert (await harness.get("/ready")).json() == {"ready": False, "connecting": 1}
    answer = await harness.get("/ready", Authorization="Bearer secret")
    assert answer.json() == {"ready": False, "connecting": ["slow"]}


async def test_status_reports_servers_collisions_and_problems() -> None:
    rules = {"github": "ask", "githb": "deny", "broken": "deny"}
    harness = GatewayHarness(FakeToolSource(*TOOLS, FakeTool("mail", "send"), servers=SERVERS), rules)
    status = (await harness.get("/status")).json()
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


async def test_status_does_not_wait_for_a_slow_server(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.protocols.toolscript.gateway.gateway.STATUS_SECONDS", 0.01)

    async def tools() -> list[FakeTool]:
        await harness.upstream.released.wait()
        return harness.upstream.tool_list

    monkeypatch.setattr(harness.upstream, "tools", tools)
    status = (await harness.get("/status")).json()
    assert (status["tools"], len(status["servers"])) == (0, 3)
    harness.upstream.released.set()
    assert len((await harness.get("/tools")).json()) == 4


async def test_servers_are_listed(harness: GatewayHarness) -> None:
    assert (await harness.get("/servers")).json() == [
        {"name": "github", "title": "GitHub", "instructions": "Be careful."},
        {"name": "mail", "title": None, "instructions": None},
        {"name": "broken", "title": None, "instructions": None},
    ]


async def test_tools_are_listed_and_filtered(harness: GatewayHarness) -> None:
    listed = (await harness.get("/tools")).json()
    assert listed[0] == {
        "serverName": "github",
        "toolName": "create_issue",
        "qualifiedName": "github__create_issue",
        "scriptName": "tools.github.createIssue",
        "description": "Creates an issue.",
        "inputSchema": SCHEMA,
        "outputSchema": SCHEMA,
    }
    names = [
        each["qualifiedName"] for each in (await harness.get("/tools?filter=mail,github__get-user")).json()
    ]
    assert names == ["github__get-user", "mail__send"]
    assert (await harness.get("/tools?filter=unknown")).json() == []


async def test_tool_list_says_which_tools_only_read() -> None:
    hints = [{"readOnlyHint": True}, {"readOnlyHint": False}, {"idempotentHint": True}, None]
    tools = [FakeTool("a", f"b{number}", annotations=each) for number, each in enumerate(hints)]
    listed = (await GatewayHarness(FakeToolSource(*tools)).get("/tools")).json()
    assert [each.get("readOnly") for each in listed] == [True, None, None, None]


async def test_schema_nested_too_deeply_does_not_break_the_tool_list() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"anyOf": [deep]}
    harness = GatewayHarness(FakeToolSource(FakeTool("a", "deep", None, deep), *TOOLS))
    listed = (await harness.get("/tools")).json()
    assert (listed[0]["inputSchema"], len(listed)) == (None, 5)
    assert (await harness.get("/runtime/tools.ts")).status_code == 200


# --- the module ---


async def test_module_is_served_as_typescript_in_all_forms(harness: GatewayHarness) -> None:
    module = await harness.get("/runtime/tools.ts?_t=123")
    assert module.headers["content-type"] == "application/typescript"
    assert "export const tools: Tools = connect([" in module.text
    compact = await harness.get("/runtime/tools.ts?compact=true")
    assert (
        "    createIssue(args: { title: string }): Promise<{ title: string }>; // Creates an issue.\n"
        in compact.text
    )
    full = await harness.get("/runtime/tools.d.ts")
    assert full.text.endswith("export declare const tools: Tools;\n")
    assert (await harness.get("/runtime/tools.d.ts?compact=1")).text == compact.text
    mail = (await harness.get("/runtime/tools.ts?filter=mail")).text
    assert "mail: Mail;" in mail
    assert "github" not in mail


async def test_module_without_tools_is_empty() -> None:
    assert (await GatewayHarness(FakeToolSource()).get("/runtime/tools.ts")).text.startswith(
        "export const tools = {};\n"
    )


async def test_module_is_cached_until_the_tools_change(harness: GatewayHarness) -> None:
    first = await harness.gateway.module()
    assert await harness.gateway.module() is first
    assert harness.upstream.list_count == 1
    answer = await harness.get("/runtime/tools.ts", **{"If-None-Match": first.etag})
    assert (answer.status_code, answer.content) == (304, b"")
    harness.upstream.change(FakeTool("github", "other"))
    changed = await harness.get("/runtime/tools.ts", **{"If-None-Match": first.etag})
    assert changed.status_code == 200
    assert "other(args" in changed.text
    assert harness.upstream.list_count == 2


async def test_cached_texts_are_limited(harness: GatewayHarness) -> None:
    for number in range(200):
        await harness.gateway.module(f"mail,x{number}")
    assert len(harness.gateway._snapshot.texts) <= 32  # type: ignore[union-attr]


# --- search ---


async def test_search_returns_tool_score_and_reason(harness: GatewayHarness) -> None:
    [found] = (await harness.get("/search?q=creat+issue&limit=1")).json()
    assert found["tool"]["toolId"] == found["tool"]["qualifiedName"] == "github__create_issue"
    assert found["tool"]["inputSchema"] == SCHEMA
    assert 0.35 <= found["score"] <= 1
    assert found["scoreBreakdown"].keys() == {"semantic", "fuzzy", "lexical", "combined"}
    assert "in its name" in found["reason"]
    assert (await harness.get("/search?q=kubernetes")).json() == []
    assert (await harness.get("/search/stats")).json()["toolsIndexed"] == 4


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "q: expected a search query"),
        ("q=%20", "q: expected a search query"),
        ("q=x&limit=0", "limit: expected a number from 1 to 100, got '0'"),
        ("q=x&limit=many", "limit: expected a number from 1 to 100, got 'many'"),
        ("q=x&threshold=2", "threshold: expected a number from 0 to 1, got '2'"),
        ("q=x&threshold=nan", "threshold: expected a number from 0 to 1, got 'nan'"),
    ],
)
async def test_invalid_search_parameters_are_rejected(
    harness: GatewayHarness, query: str, message: str
) -> None:
    answer = await harness.get(f"/search?{query}")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


# --- calls ---


@pytest.mark.parametrize("value", [None, 0, "0", [], {"a": [1, "ü\u2028"]}, "\ud800"], ids=repr)
async def test_call_returns_the_tools_value(harness: GatewayHarness, value: Any) -> None:
    harness.upstream.functions["send"] = returning(value)
    answer = await harness.call("mail__send", {"to": "x"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert json.loads(answer.content) == value
    assert harness.upstream.calls == [("mail", "send", {"to": "x"})]


async def test_call_without_a_body_has_no_arguments(harness: GatewayHarness) -> None:
    assert (await harness.call("mail__send", b"")).status_code == 200
    assert harness.upstream.calls == [("mail", "send", {})]


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
async def test_failed_call_returns_status_and_details(
    harness: GatewayHarness, kind: str, status: int
) -> None:
    harness.upstream.functions["send"] = failing(kind, "no such mailbox", {"code": 7})
    answer = await harness.call("mail__send")
    assert answer.status_code == status
    assert answer.json()["error"] == {
        "code": kind,
        "message": "no such mailbox",
        "server": "mail",
        "tool": "send",
        "details": {"code": 7},
    }


async def test_unknown_tool_returns_suggestions(harness: GatewayHarness) -> None:
    answer = await harness.call("github__creat_isue")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["server"], error["tool"]) == ("github", "creat_isue")
    assert error["message"] == "There is no tool github__creat_isue. Did you mean github__create_issue?"
    assert error["details"] == {"suggestions": ["github__create_issue"]}
    assert (await harness.call("zzz")).json()["error"]["message"] == "There is no tool zzz"


async def test_tool_of_a_failed_server_is_reported_without_secrets(harness: GatewayHarness) -> None:
    answer = await harness.call("broken__anything")
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
async def test_body_that_is_not_an_object_is_rejected(
    harness: GatewayHarness, body: bytes, message: str
) -> None:
    answer = await harness.call("mail__send", body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["server"], error["tool"]) == ("mail", "send")
    assert error["message"].startswith(message)
    assert harness.upstream.calls == []


async def test_oversized_body_is_rejected() -> None:
    harness = GatewayHarness(FakeToolSource(*TOOLS), max_body_bytes=100)
    answer = await harness.call("mail__send", {"x": "y" * 100})
    assert (answer.status_code, answer.json()["error"]["message"]) == (413, "body: the maximum is 100 bytes")


async def test_result_that_is_not_json_is_a_server_error(harness: GatewayHarness) -> None:
    harness.upstream.functions["send"] = returning(float("nan"))
    answer = await harness.call("mail__send")
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == "The result of mail__send cannot be written as JSON: $ is NaN"


async def test_removed_tool_is_not_called(harness: GatewayHarness) -> None:
    await harness.call("mail__send")
    harness.upstream.change(*TOOLS[:3])
    assert (await harness.call("mail__send")).status_code == 404
    assert len(harness.upstream.calls) == 1


async def test_call_is_cancelled_when_the_client_disconnects(harness: GatewayHarness) -> None:
    harness.upstream.functions["send"] = harness.upstream.wait
    async with listening(harness) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /tools/mail__send HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        )
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await harness.upstream.called.wait()
            writer.close()
            await harness.upstream.cancelled.wait()


async def test_call_is_cancelled_when_the_drain_timeout_expires(harness: GatewayHarness) -> None:
    harness.upstream.functions["send"] = harness.upstream.wait
    calling = asyncio.create_task(harness.call("mail__send"))
    await harness.upstream.called.wait()
    assert not await harness.access.drain(0.01)
    answer = await calling
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert (await harness.call("mail__send")).status_code == 503
    assert (await harness.get("/health")).json()["status"] == "draining"


# --- access ---

PATHS = [*SCRIPT_PATHS, "/status", "/approvals", "/approvals/events", "/approvals/x"]


async def test_token_is_required_except_for_health_and_readiness() -> None:
    harness = GatewayHarness(FakeToolSource(*TOOLS), api_key="secret")
    for path in PATHS:
        assert (await harness.get(path)).status_code == 401, path
    assert (await harness.call("mail__send")).status_code == 401
    assert (await harness.decide("x", decision="allow")).status_code == 401
    assert (await harness.get("/health")).status_code == 200
    assert (await harness.get("/ready")).status_code == 200
    assert (await harness.call("mail__send", Authorization="Bearer secret")).status_code == 200
    assert (await harness.get("/tools", Authorization="Bearer secret")).status_code == 200


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}], ids=str)
async def test_requests_of_other_sites_are_rejected(harness: GatewayHarness, headers: dict[str, str]) -> None:
    for path in PATHS:
        assert (await harness.get(path, **headers)).status_code == 403, path
    assert (await harness.call("mail__send", **headers)).status_code == 403
    assert harness.upstream.calls == []


# --- scripts of this process ---

REQUESTS = [
    *(("GET", path, None) for path in (*SCRIPT_PATHS, "/health", "/ready", "/tools?filter=mail", "/search")),
    ("GET", "//runtime/tools.ts?compact=true&filter=mail", None),
    ("GET", "/api/tools", None),
    ("HEAD", "/tools", None),
    ("GET", "/search?q=user&limit=0", None),
    ("POST", "/tools/github__get_user", b'{"name": "x"}'),
    ("POST", "//tools/github__get%5Fuser", b""),
    ("POST", "/tools/github__get_usr", b"{}"),
    ("POST", "/tools/github__fail", b"{}"),
    ("POST", "/tools/github__odd", b"{}"),
    ("POST", "/tools/github__get_user", b"[1]"),
    ("POST", "/tools/github__get_user", b"{"),
    ("POST", "/tools/github__get_user", b" " * 1001),
    ("GET", "/tools/github__get_user", None),
    ("POST", "/tools", b"{}"),
    ("DELETE", "/servers", None),
    ("GET", "/status", None),
    ("GET", "/approvals", None),
    ("POST", "/approvals/x", b"{}"),
    ("GET", "/APPROVALS", None),
    ("GET", "/metrics", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_scripts_of_this_and_other_processes_get_the_same_response(
    method: str, path: str, body: bytes | None
) -> None:
    tools = (*TOOLS, FakeTool("github", "fail"), FakeTool("github", "odd"))
    harness = GatewayHarness(FakeToolSource(*tools, servers=SERVERS), max_body_bytes=1000)
    harness.upstream.functions["fail"] = failing("tool_error", "it broke", {"status": 404})
    harness.upstream.functions["odd"] = returning(object())
    remote = harness.connect(**{"X-Hutch-Run": "r"})
    async with harness.connect_from_jail("r") as local:
        expected = await remote.request(method, path, content=body)
        answer = await local.request(method, path, content=body)
    assert (answer.status_code, answer.content) == (expected.status_code, expected.content)
    for header in ("content-type", "content-length", "etag", "cache-control"):
        assert answer.headers.get(header) == expected.headers.get(header), header
    # Compare the methods in `Allow` as a set, because Starlette does not keep their order.
    allowed = [sorted(each.headers.get("allow", "").split(", ")) for each in (answer, expected)]
    assert allowed[0] == allowed[1]


@pytest.mark.parametrize("header", [{"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}], ids=str)
async def test_script_of_this_process_must_send_json_too(
    harness: GatewayHarness, header: dict[str, str]
) -> None:
    async with harness.connect_from_jail("r") as local, harness.connect(**{"X-Hutch-Run": "r"}) as remote:
        answers = [
            await client.post("/tools/github__get_user", content=b"{}", headers=header)
            for client in (local, remote)
        ]
    assert [answer.status_code for answer in answers] == [415, 415]
    assert answers[0].content == answers[1].content
    assert harness.upstream.calls == []


async def test_unchanged_module_is_not_sent_to_a_script_again(harness: GatewayHarness) -> None:
    async with harness.connect_from_jail("r") as script:
        etag = (await script.get("/runtime/tools.ts")).headers["etag"]
        answer = await script.get("/runtime/tools.ts", headers={"If-None-Match": etag})
    assert (answer.status_code, answer.content) == (304, b"")


async def test_call_is_cancelled_when_the_script_disconnects(harness: GatewayHarness) -> None:
    harness.upstream.functions["get_user"] = harness.upstream.wait
    async with harness.connect_from_jail("r") as script:
        calling = asyncio.create_task(script.post("/tools/github__get_user"))
        await harness.upstream.called.wait()
        calling.cancel()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await harness.upstream.cancelled.wait()
