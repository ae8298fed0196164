"""The door on a real port: who may come in, and how it closes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.doors.mcp.houses import IMPORT, House, listening, ran, text_of
from tests.doors.mcp.watching import WAIT, ended
from tests.processes import PATIENCE

from hutch.doors.cors import Cors

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


async def hello(url: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.post(url, json=HELLO, headers={**ACCEPT, **named})


async def test_code_runs_for_clients_of_both_eras(house: House, era: str) -> None:
    async with listening(house) as (url, _, _), Client(url, mode=era) as client:
        assert "tools.github" in (client.instructions or "")
        found = await ran(client, f"{IMPORT}return await tools.github.createIssue({{ title: 'x' }});")
        assert found["result"] == {"number": 7}
        assert [each["tool"] for each in found["toolCalls"]] == ["create_issue"]
        assert (await ran(client, "return 2", "javascript"))["result"] == 2


async def test_pages_of_other_sites_and_rebound_names_are_kept_out(house: House) -> None:
    async with listening(house) as (url, _, _):
        assert (await hello(url, Host="evil.example")).status_code == 403
        assert (await hello(url, Origin="https://evil.example")).status_code == 403
        assert (await hello(url)).status_code == 200
        own = url.removesuffix("/mcp")
        assert (await hello(url, Origin=own)).status_code == 200


async def test_a_key_is_asked_for(house: House) -> None:
    async with listening(house, api_key="secret") as (url, _, _):
        refused = await hello(url)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert (await hello(url, Authorization="Bearer wrong")).status_code == 401
        http = httpx2.AsyncClient(headers={"Authorization": "Bearer secret"}, timeout=PATIENCE)
        async with http, Client(streamable_http_client(url, http_client=http)) as client:
            assert (await ran(client, "return 1", "javascript"))["result"] == 1


async def test_what_is_too_large_or_no_method_of_ours_is_refused(app: Any) -> None:
    house = House(app, max_body_bytes=1_000)
    async with listening(house) as (url, _, _), httpx2.AsyncClient(timeout=PATIENCE) as client:
        large = await client.post(url, content=b"x" * 2_000, headers=ACCEPT)
        assert large.status_code == 413
        assert (await client.put(url)).status_code == 405
        assert (await client.post(url, json=HELLO, headers={"Accept": "text/html"})).status_code == 406
        broken = await client.post(url, content=b"{", headers={**ACCEPT, "Content-Type": "application/json"})
        assert broken.status_code == 400


async def test_a_client_that_ends_its_session_ends_its_runs(house: House) -> None:
    async with listening(house) as (url, _, _):
        async with Client(url, mode="legacy") as client:
            running = asyncio.create_task(ran(client, WAIT["toolscript"]))
            await house.upstream.called.wait()
            leaving = ended(house)
            await leaving.__aenter__()
        await leaving.__aexit__(None, None, None)
        with pytest.raises(MCPError, match="Connection closed"):
            await running


async def test_a_server_that_drains_lets_runs_finish_and_ends_idle_streams(house: House) -> None:
    async with listening(house, pass_through=True) as (url, gate, door):
        async with (
            Client(url, mode="legacy") as client,
            Client(url) as other,
            other.listen(tools_list_changed=True) as events,
        ):
            running = asyncio.create_task(ran(client, WAIT["toolscript"]))
            await house.upstream.called.wait()
            draining = asyncio.create_task(gate.drain(PATIENCE))
            await asyncio.sleep(0)
            assert (await hello(url)).status_code == 503
            refused = await other.call_tool("search_tools", {"query": "x"})
            assert "The server is shutting down" in text_of(refused)
            assert not draining.done()
            house.upstream.go.set()
            assert (await running)["result"] == 1
            assert await draining
            assert [each async for each in events] == []
        assert door._living is not None
        async with asyncio.timeout(PATIENCE):
            await door._living


async def test_a_server_whose_time_is_up_ends_what_still_runs(house: House, era: str) -> None:
    async with listening(house) as (url, gate, _), Client(url, mode=era) as client:
        running = asyncio.create_task(client.call_tool("run_code", {"code": WAIT["toolscript"]}))
        await house.upstream.called.wait()
        async with ended(house):
            await gate.drain(0.01)
        answer = await running
        assert answer.is_error
        assert "The server is shutting down" in text_of(answer)


async def test_a_door_that_nobody_came_to_closes_at_once(house: House) -> None:
    async with listening(house) as (url, _, door):
        assert door._living is None
    with pytest.raises(httpx2.HTTPError):
        await hello(url)


async def test_a_page_may_send_and_read_what_mcps_sessions_need() -> None:
    async def nothing(scope: object, receive: object, send: object) -> None:
        raise AssertionError("a preflight goes no further")

    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "OPTIONS", "path": "/mcp", "headers": []}
    await Cors(nothing)(scope, None, send)  # type: ignore[arg-type]
    headers = dict(sent[0]["headers"])  # type: ignore[call-overload]
    assert b"DELETE" in headers[b"access-control-allow-methods"]
    assert b"Mcp-Session-Id" in headers[b"access-control-expose-headers"]
