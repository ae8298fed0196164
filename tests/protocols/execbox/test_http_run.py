"""`POST /run`: results, events, errors and access, against real servers."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from tests.support.openapi import OpenApiChecker
from tests.support.processes import ServeProcess, hutch, running_server

TRACKER = Path(__file__).parents[2] / "support/mcp_servers/tracker.py"
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def code_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A server with two MCP servers, one of which cannot be started."""
    config = tmp_path_factory.mktemp("mcp") / "mcp.json"
    entry = {"command": sys.executable, "args": [str(TRACKER)]}
    config.write_text(json.dumps({"mcpServers": {"tracker": entry, "gone": {"command": "no-such-program"}}}))
    with running_server(HUTCH_MCP_CONFIG=str(config), HUTCH_MAX_BODY_BYTES="100000") as server:
        yield server


@pytest.fixture
async def client(code_server: ServeProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=code_server.url, timeout=60) as opened:
        yield opened


def parse_events(text: str) -> list[tuple[str, Any]]:
    blocks = [block for block in text.split("\n\n") if block.startswith("event: ")]
    return [
        (block.split("\n")[0].removeprefix("event: "), json.loads(block.split("\ndata: ")[1]))
        for block in blocks
    ]


async def test_result_has_value_logs_calls_and_the_run_id_of_the_header(client: httpx2.AsyncClient) -> None:
    code = """
        console.log(items.length);
        const issue: {number: number} = await tools.tracker.createIssue({title: "x"});
        return issue.number > 0
    """
    body = {"code": code, "inputs": {"items": [1, 2]}, "label": "mine", "check": True}
    response = await client.post("/run", json=body)
    result = response.json()
    assert response.status_code == 200
    assert result.pop("duration_ms") > 0
    assert result.pop("calls")[0].items() >= {"provider": "tools.tracker", "tool": "createIssue"}.items()
    run_id = response.headers["x-run-id"]
    assert result == {
        "ok": True,
        "run_id": run_id,
        "result": True,
        "logs": ["2"],
        "logs_truncated": False,
        # The warning does not contain the reason, because only the operator may see it.
        "warnings": ["the MCP server gone is not connected"],
    }


async def test_call_without_await_is_a_warning_and_the_numbers_of_calls_agree(
    client: httpx2.AsyncClient,
) -> None:
    code = 'tools.tracker.createIssue({title: "x"});\nreturn "made"'
    result = (await client.post("/run", json={"code": code, "record": "full"})).json()
    assert result["result"] == "made"
    # Whether the call ends before the run depends on the speed of the server.
    (made,) = result["calls"]
    assert (made["tool"], made["line"]) == ("createIssue", 1)
    (warning,) = (text for text in result["warnings"] if "gone" not in text)
    assert warning.startswith("1 call of tools.tracker.createIssue (line 1) had not ended when the code ret")
    assert warning.endswith("Did you forget `await`?")
    run = (await client.get(f"/runs/{result['run_id']}")).json()
    assert run["tool_call_count"] == 1
    (call,) = run["tool_calls"]
    assert (call["tool"], call["ok"], call["line"]) == ("createIssue", made["ok"], 1)
    assert call["duration_ms"] is not None


async def test_reached_limit_names_the_field_that_raises_it(client: httpx2.AsyncClient) -> None:
    waiting = {"code": "await new Promise(() => {})", "limits": {"timeout_ms": 100}}
    message = (await client.post("/run", json=waiting)).json()["error"]["message"]
    assert message == "Execution timed out after 100 ms; limits.timeout_ms allows up to 300000"
    filling = {"code": "const a = []; for (;;) a.push(new Array(1000).fill(1))"}
    message = (await client.post("/run", json=filling)).json()["error"]["message"]
    assert "; limits.memory_limit_bytes allows up to " in message


async def test_files_are_sent_and_returned_in_base64(client: httpx2.AsyncClient) -> None:
    code = """
        await files.write("copy.txt", await files.text("a.txt"));
        await files.write("large.bin", new Uint8Array(75001)).catch((error) => display(error.message));
    """
    response = await client.post("/run", json={"code": code, "files": {"a.txt": "aGVsbG8="}})
    copy, message = response.json()["files"]
    assert copy == {"name": "copy.txt", "mime_type": "text/plain", "size": 5, "data": "aGVsbG8="}
    # The server's maximum size of a request body also limits the files in a response.
    assert b"the limit is 75000 (setting max_body_bytes)" in base64.b64decode(message["data"])
    api = OpenApiChecker((await client.get("/openapi.json")).json())
    api.check_response("POST", "/run", response)


async def test_request_chooses_what_is_recorded(client: httpx2.AsyncClient) -> None:
    recorded = {}
    for level in (None, "metadata", "full"):
        body = {"code": "return 1"} | ({} if level is None else {"record": level})
        run_id = (await client.post("/run", json=body)).json()["run_id"]
        run = (await client.get(f"/runs/{run_id}")).json()
        recorded[level] = run["recorded"], run.get("code")
    assert recorded == {None: ("errors", None), "metadata": ("metadata", None), "full": ("full", "return 1")}


async def test_run_is_shown_by_the_beginning_of_its_id(client: httpx2.AsyncClient) -> None:
    run_id = (await client.post("/run", json={"code": "return 1"})).json()["run_id"]
    # Request the list first. Before the server answers this request, it writes queued records.
    await client.get("/runs")
    assert run_id in hutch("runs", "show", f"{run_id[:8]}…").stdout
    missing = hutch("runs", "show", "ffffffffffff")
    assert (missing.returncode, "there is no 'ffffffffffff'" in missing.stderr) == (2, True)


def test_request_cannot_raise_the_metadata_of_the_operator() -> None:
    with running_server(HUTCH_RECORD_PROTOCOLS="execbox=metadata") as server:
        run_id = httpx2.post(server.url + "/run", json={"code": "1", "record": "full"}).json()["run_id"]
        assert httpx2.get(f"{server.url}/runs/{run_id}").json()["recorded"] == "metadata"


@pytest.mark.parametrize(("scope", "has_tools"), [("mcp", False), ("toolscript", True)])
async def test_key_needs_the_scope_of_the_gateway_for_its_tools(
    client: httpx2.AsyncClient, scope: str, has_tools: bool
) -> None:
    hutch("user", "add", scope)
    key = hutch("key", "add", scope, "--scope", "execbox", "--scope", scope).stdout.split()[-1]
    headers = {"Authorization": f"Bearer {key}"}
    response = await client.post("/run", json={"code": "return typeof tools"}, headers=headers)
    assert response.json()["result"] == ("object" if has_tools else "undefined")
    checked = await client.post("/console/check", json={"code": "1"}, headers=headers)
    assert checked.status_code == (200 if has_tools else 403)


async def test_failure_of_the_code_is_a_result_with_its_position(client: httpx2.AsyncClient) -> None:
    body = {"code": "1;\nnull.x", "engine": "deno", "limits": {"timeout_ms": 60_000}}
    response = await client.post("/run", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["name"], error["line"]) == (
        200,
        "runtime_error",
        "TypeError",
        2,
    )
    response = await client.post("/run", json={"code": "const x: number = 'a'; return x", "check": True})
    error = response.json()["error"]
    assert (error["code"], error["name"], error["line"]) == ("validation_error", "TypeCheckError", 1)


async def test_events_come_before_the_result(client: httpx2.AsyncClient) -> None:
    code = "console.log('é');\nreturn await tools.tracker.createIssue({title: 'secret'})"
    response = await client.post("/run", json={"code": code}, headers=EVENTS)
    events = parse_events(response.text)
    names = [name for name, _ in events]
    assert names == ["queued", "started", "log", "tool_call_started", "tool_call_ended", "end", "result"]
    run_id = response.headers["x-run-id"]
    assert {data["run_id"] for _, data in events} == {run_id}
    fields = dict(events)
    assert fields["log"]["line"] == "é"
    assert fields["tool_call_started"].items() >= {"tool": "createIssue", "line": 2}.items()
    assert "input" not in fields["tool_call_started"]
    assert "output" not in fields["tool_call_ended"]
    assert fields["result"]["result"]["title"] == "secret"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "code: expected a string, got nothing"),
        ({"code": 1}, "code: expected a string, got the number 1"),
        ({"code": "1", "engine": "dneo"}, 'engine: expected quickjs or deno, got "dneo"'),
        ({"code": "1", "timeout_ms": 4}, "timeout_ms: unknown field; did you mean limits.timeout_ms?"),
        ({"code": "1", "timeout": 4}, "timeout: unknown field; did you mean limits.timeout_ms?"),
        ({"code": "1", "zzzz": 4}, "zzzz: unknown field; expected one of code, inputs"),
        ({"code": "1", "limits": {"timeout": 4}}, "limits.timeout: unknown field; did you mean timeout_ms?"),
        ({"code": "1", "limits": {"timeout_ms": 1e9}}, "limits.timeout_ms: is 1000000000; the maximum is"),
        ({"code": "1", "limits": {"timeout_ms": -1}}, "limits.timeout_ms: expected a number of at least 1"),
        ({"code": "1", "limits": {"timeout_ms": "4"}}, "limits.timeout_ms: expected a number, got"),
        ({"code": "1", "inputs": {"a b": 1}}, "inputs: expected names that are JavaScript identifiers"),
        ({"code": "1", "files": {"a": 1}}, "files: expected an object with contents in Base64, got"),
        ({"code": "1", "files": {"a": "no Base64"}}, "files.a: expected Base64"),
        ({"code": "1", "files": {"../a": ""}}, "files: expected a plain file name"),
        ({"code": "1", "label": "x" * 201}, "label: expected a string of at most 200 characters"),
    ],
)
async def test_invalid_request_is_refused_with_the_field(
    client: httpx2.AsyncClient, body: Any, message: str
) -> None:
    for headers in ({}, EVENTS):
        response = await client.post("/run", json=body, headers=headers)
        refusal = response.json()
        assert (response.status_code, refusal["success"], refusal["error"]["code"]) == (
            400,
            False,
            "INVALID_REQUEST",
        )
        assert message in refusal["error"]["message"]


async def test_method_type_and_size_of_requests_are_checked(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/run")).status_code == 405
    assert (
        await client.post("/run", content="code=1", headers={"Content-Type": "text/plain"})
    ).status_code == 415
    assert (await client.post("/run", json={"code": "x" * 100_000})).status_code == 413
    foreign = await client.post("/run", json={"code": "1"}, headers={"Origin": "https://example.com"})
    assert foreign.status_code == 403


async def test_disconnect_cancels_the_run(client: httpx2.AsyncClient) -> None:
    async def wait_until_running(count: int) -> None:
        async with asyncio.timeout(60):
            pattern = rf"^hutch_executions_in_flight(?:{{.*quickjs.*}})? {count}(?:\.0)?$"
            while not re.search(pattern, (await client.get("/metrics")).text, re.M):
                pass

    body = {"code": "await new Promise(() => {})", "limits": {"timeout_ms": 300_000}}
    for headers in ({}, EVENTS):
        request = asyncio.create_task(client.post("/run", json=body, headers=headers))
        await wait_until_running(1)
        request.cancel()
        await wait_until_running(0)


async def test_api_key_is_required_if_the_server_has_one() -> None:
    with running_server(HUTCH_API_KEY="secret") as server:
        async with httpx2.AsyncClient(base_url=server.url) as client:
            refused = await client.post("/run", json={"code": "1"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "UNAUTHORIZED")
            key = {"Authorization": "Bearer secret"}
            assert (await client.post("/run", json={"code": "1 + 1"}, headers=key)).json()["result"] == 2


async def test_responses_match_the_openapi_document(client: httpx2.AsyncClient) -> None:
    api = OpenApiChecker((await client.get("/openapi.json")).json())
    for body in ({"code": "1"}, {"code": "throw 1"}, {}):
        api.check_response("POST", "/run", await client.post("/run", json=body))
    api.check_body("POST", "/run", {"code": "1", "limits": {"timeout_ms": 5}})
    with pytest.raises(jsonschema_rs.ValidationError):
        api.check_body("POST", "/run", {"code": "1", "timeout": 5})


def test_curl_examples_of_the_documentation_work(code_server: ServeProcess) -> None:
    page = (Path(__file__).parents[3] / "docs/execbox.md").read_text()
    commands = re.findall(r"^curl .*localhost:4111/run .*$", page, re.M)
    outputs = [
        subprocess.run(
            ["bash", "-c", command.replace("localhost:4111", code_server.url)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for command in commands
    ]
    assert json.loads(outputs[0]).items() >= {"ok": True, "result": 42, "logs": ["1"]}.items()
    names = [name for name, _ in parse_events(outputs[1])]
    assert names == ["queued", "started", "log", "end", "result"]
