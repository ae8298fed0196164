"""Run records of npm tools: outgoing requests, installations, and batches."""

from __future__ import annotations

from typing import Any

from tests.contract.tpmjs.harness import SyncServer, ToolServer, tool

FETCH = tool("return (await fetch(params.url)).status")


async def runs_of(server: ToolServer, **filters: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await server.client.get("/runs", params=filters)).json()["runs"]
    return listed


async def test_record_has_the_requests_of_a_tool_and_the_time_of_its_installation(
    tool_server: ToolServer, sync: SyncServer
) -> None:
    package = tool_server.publish(FETCH)
    url = f"{sync.url}/ready/recorded?token=hidden"
    assert (await tool_server.execute(package, params={"url": url}))["output"] == 200
    await tool_server.execute(package, params={"url": "http://refused.invalid/"})
    [refused, first] = await runs_of(tool_server, label=f"{package}@*")
    assert first["install_ms"] > 0
    assert refused["install_ms"] == 0
    detail = (await tool_server.client.get(f"/runs/{first['run_id']}")).json()
    [request] = detail["requests"]
    assert (request["method"], request["host"], request["status"]) == ("GET", sync.address, 200)
    assert (
        0
        <= request["start_ms"]
        <= request["start_ms"] + request["duration_ms"]
        <= detail["duration_ms"] + 500
    )
    assert request["sent_bytes"] > 0
    assert request["received_bytes"] > 0
    assert "hidden" not in str(detail)
    assert await runs_of(tool_server, host=sync.address, label=f"{package}@*") == [first]
    [request] = (await tool_server.client.get(f"/runs/{refused['run_id']}")).json()["requests"]
    assert (request["host"], request["error"]) == ("refused.invalid", "ENOTFOUND")


async def test_package_that_cannot_be_installed_leaves_a_failed_run(tool_server: ToolServer) -> None:
    response = await tool_server.post("/execute-tool", {"packageName": "nowhere", "name": "x", "params": {}})
    assert response.json()["error"]["code"] == "PACKAGE_NOT_FOUND"
    [run] = await runs_of(tool_server, label="nowhere*")
    assert (run["status"], run["outcome"]) == ("failed", "package_not_found")
    assert "nowhere" in run["error"]["message"]


async def test_calls_of_a_batch_have_the_batch_as_their_parent(tool_server: ToolServer) -> None:
    package = tool_server.publish(tool("return params.n"))
    calls = [{"packageName": package, "name": name, "params": {"n": 1}} for name in ("tool", "absent")]
    assert (await tool_server.post("/execute-batch", {"tools": calls})).json()["success"] is False
    [batch] = await runs_of(tool_server, label="batch of 2 calls")
    assert (batch["status"], batch["error"]["message"]) == ("failed", "1 of 2 calls failed")
    children = await runs_of(tool_server, parent=batch["run_id"])
    assert sorted(run["outcome"] for run in children) == ["ok", "tool_not_found"]
