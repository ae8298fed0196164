"""`/execute-batch`: several calls in one request, each with its own result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.protocols.tpmjs.harness import TpmjsServer, call

from hutch.protocols.tpmjs.routes import MAX_BATCH_CONCURRENCY


async def batch(server: TpmjsServer, *items: Any, **headers: str) -> Any:
    return (await server.post("/execute-batch", {"tools": items}, **headers)).json()


async def test_results_are_in_the_order_of_the_calls() -> None:
    server = TpmjsServer()
    failing = call("fail", {"code": "timeout"})
    data = await batch(server, call("echo", {"n": 1}), failing, call("undefined"), call("crash"))
    assert type(data.pop("executionTimeMs")) is int
    for result in data["results"]:
        assert type(result.pop("executionTimeMs")) is int
    assert data == {
        "success": False,
        "results": [
            {"success": True, "output": {"n": 1}, "resolvedVersion": "1.2.3"},
            {
                "success": False,
                "error": {"code": "EXECUTION_TIMEOUT", "message": "it broke"},
                "resolvedVersion": "1.2.3",
                "logs": ["so far"],
            },
            {"success": True, "output": None},
            {
                "success": False,
                "error": {"code": "INTERNAL_ERROR", "message": "The server failed; its log says why"},
            },
        ],
    }


async def test_batch_succeeds_if_all_calls_do() -> None:
    server = TpmjsServer()
    assert (await batch(server, call("echo"), call("echo")))["success"] is True
    assert (await batch(server, call("echo"), call("fail")))["success"] is False
    assert server.tools.batches == [(0, 2), (1, 2)]


async def test_failures_are_in_the_version_of_the_request() -> None:
    data = await batch(TpmjsServer(), call("fail", {"code": "timeout"}), X_TPMJS_Protocol_Version="1.1")
    assert data["results"][0]["errorCode"] == "EXECUTION_TIMEOUT"


async def test_concurrency_of_a_batch_is_limited() -> None:
    server = TpmjsServer()
    waiting = asyncio.create_task(batch(server, *[call("wait")] * 32))
    await server.tools.wait_started(MAX_BATCH_CONCURRENCY)
    server.tools.go.set()
    assert [result["output"] for result in (await waiting)["results"]] == ["went"] * 32
    assert (server.tools.max_concurrent, len(server.tools.calls)) == (MAX_BATCH_CONCURRENCY, 32)


async def test_call_above_the_concurrency_limit_is_busy_and_the_others_are_not() -> None:
    server = TpmjsServer(max_tools=1)
    waiting = asyncio.create_task(batch(server, call("wait"), call("echo")))
    await server.tools.wait_started(1)
    server.tools.go.set()
    first, second = (await waiting)["results"]
    assert first["output"] == "went"
    assert second["error"]["code"] == "BUSY"


async def test_batch_timeout_keeps_finished_results() -> None:
    data = await batch(TpmjsServer(request_seconds=0.05), call("echo"), *[call("wait")] * 31)
    codes = [result.get("error", {}).get("code") for result in data["results"]]
    assert codes == [None, *["EXECUTION_TIMEOUT"] * 31]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, "body: expected an object, got null"),
        ([call("echo")], "body: expected an object, got an array"),
        ({}, "tools: expected an array, got nothing"),
        ({"tools": None}, "tools: expected an array, got null"),
        ({"tools": call("echo")}, "tools: expected an array, got an object"),
        ({"tools": []}, "tools: expected 1 to 32 items, got 0"),
        ({"tools": [call("echo")] * 33}, "tools: expected 1 to 32 items, got 33"),
        ({"tools": [call("echo"), 1]}, "tools[1]: expected an object, got a number"),
        (
            {"tools": [call("echo", []), call("echo"), call("echo", env={"X": 1})]},
            "tools[0].params: expected an object, got an array; tools[2].env.X: expected a string",
        ),
        ({"tools": [call("echo"), {**call("echo"), "version": "file:x"}]}, "tools[1].version: "),
    ],
)
async def test_invalid_item_is_named_and_nothing_is_executed(body: Any, expected: str) -> None:
    server = TpmjsServer()
    response = await server.post("/execute-batch", body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert response.json()["error"]["message"].startswith(expected)
    assert server.tools.calls == []


async def test_every_call_of_a_batch_counts_for_the_rate_limit() -> None:
    server = TpmjsServer(rate_limit=4)
    assert (await batch(server, *[call("echo")] * 3))["success"] is True
    assert (await server.execute("echo")).status_code == 200
    assert (await server.execute("echo")).status_code == 429
