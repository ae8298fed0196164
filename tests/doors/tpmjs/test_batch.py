"""`/execute-batch`: several calls in one request, each with its own answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.doors.tpmjs.scripted import Door, call

from hutch.doors.tpmjs.http import BATCH_AT_ONCE


async def batch(door: Door, *items: Any, **headers: str) -> Any:
    return (await door.post("/execute-batch", {"tools": items}, **headers)).json()


async def test_results_are_in_the_order_of_the_calls_and_each_is_an_answer_of_its_own() -> None:
    door = Door()
    failing = call("fail", {"code": "timeout"})
    said = await batch(door, call("echo", {"n": 1}), failing, call("undefined"), call("crash"))
    assert type(said.pop("executionTimeMs")) is int
    for result in said["results"]:
        assert type(result.pop("executionTimeMs")) is int
    assert said == {
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


async def test_batch_succeeds_when_all_of_it_does() -> None:
    assert (await batch(Door(), call("echo"), call("echo")))["success"] is True


async def test_failures_are_in_the_version_of_the_request() -> None:
    said = await batch(Door(), call("fail", {"code": "timeout"}), X_TPMJS_Protocol_Version="1.1")
    assert said["results"][0]["errorCode"] == "EXECUTION_TIMEOUT"


async def test_calls_are_made_at_once_but_not_all() -> None:
    door = Door()
    waiting = asyncio.create_task(batch(door, *[call("wait")] * 32))
    await door.tools.begun_with(BATCH_AT_ONCE)
    door.tools.go.set()
    assert [result["output"] for result in (await waiting)["results"]] == ["went"] * 32
    assert (door.tools.most_at_once, len(door.tools.calls)) == (BATCH_AT_ONCE, 32)


async def test_what_finds_no_place_is_busy_and_the_rest_is_not() -> None:
    door = Door(max_tools=1)
    waiting = asyncio.create_task(batch(door, call("wait"), call("echo")))
    await door.tools.begun_with(1)
    door.tools.go.set()
    first, second = (await waiting)["results"]
    assert first["output"] == "went"
    assert second["error"]["code"] == "BUSY"


async def test_batch_that_takes_too_long_has_what_was_done_and_timeouts() -> None:
    said = await batch(Door(request_seconds=0.05), call("echo"), *[call("wait")] * 31)
    codes = [result.get("error", {}).get("code") for result in said["results"]]
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
async def test_wrong_item_is_named_and_nothing_of_the_batch_has_happened(body: Any, expected: str) -> None:
    door = Door()
    response = await door.post("/execute-batch", body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert response.json()["error"]["message"].startswith(expected)
    assert door.tools.calls == []


async def test_every_call_of_a_batch_counts_for_the_rate() -> None:
    door = Door(rate_limit=4)
    assert (await batch(door, *[call("echo")] * 3))["success"] is True
    assert (await door.execute("echo")).status_code == 200
    assert (await door.execute("echo")).status_code == 429
