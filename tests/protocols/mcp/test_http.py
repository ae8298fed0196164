"""MCP over HTTP on a real port: access and shutdown."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.protocols.mcp.harness import IMPORT, McpHarness, listening, run_structured, text_of
from tests.protocols.mcp.observers import WAIT, ends_script
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.app.app import App
from hutch.http.middleware.cors import Cors
from hutch.store.models import User
from hutch.vault import api_keys
from hutch.vault.api_keys import Identity

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
    async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.post(url, json=HELLO, headers={**ACCEPT, **named})


async def test_code_runs_for_clients_of_both_eras(harness: McpHarness, era: str) -> None:
    async with listening(harness) as (url, _, _), Client(url, mode=era) as client:
        assert "tools.github" in (client.instructions or "")
        found = await run_structured(
            client, f"{IMPORT}return await tools.github.createIssue({{ title: 'x' }});"
        )
        assert found["result"] == {"number": 7}
        assert [each["tool"] for each in found["toolCalls"]] == ["create_issue"]
        assert (await run_structured(client, "return 2", "javascript"))["result"] == 2


async def test_other_sites_and_rebound_names_are_rejected(harness: McpHarness) -> None:
    async with listening(harness) as (url, _, _):
        assert (await hello(url, Host="evil.example")).status_code == 403
        assert (await hello(url, Origin="https://evil.example")).status_code == 403
        assert (await hello(url)).status_code == 200
        own = url.removesuffix("/mcp")
        assert (await hello(url, Origin=own)).status_code == 200


async def test_key_is_required(harness: McpHarness) -> None:
    async with listening(harness, api_key="secret") as (url, _, _):
        refused = await hello(url)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert (await hello(url, Authorization="Bearer wrong")).status_code == 401
        http = httpx2.AsyncClient(headers={"Authorization": "Bearer secret"}, timeout=TIMEOUT_SECONDS)
        async with http, Client(streamable_http_client(url, http_client=http)) as client:
            assert (await run_structured(client, "return 1", "javascript"))["result"] == 1


async def test_oversized_body_and_unknown_method_are_rejected(app: Any) -> None:
    harness = McpHarness(app, max_body_bytes=1_000)
    async with listening(harness) as (url, _, _), httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
        large = await client.post(url, content=b"x" * 2_000, headers=ACCEPT)
        assert large.status_code == 413
        assert (await client.put(url)).status_code == 405
        assert (await client.post(url, json=HELLO, headers={"Accept": "text/html"})).status_code == 406
        broken = await client.post(url, content=b"{", headers={**ACCEPT, "Content-Type": "application/json"})
        assert broken.status_code == 400


KEYS = b"{%b}" % b",".join(b'"k%d":1' % number for number in range(240_000))
HOSTILE_ARGUMENTS = {
    "240 000 keys": (KEYS, 413),
    "49 000 keys": (KEYS[: KEYS.index(b',"k49000"')] + b"}", 200),
    "10 MB of escapes": (b'{"a":"%b"}' % (rb"\"" * 5_000_000), 413),
    "4 MB of escapes": (b'{"a":"%b"}' % (rb"\"" * 2_000_000), 200),
    "130 levels": (b'{"a":' * 130 + b"1" + b"}" * 130, 400),
}


@pytest.mark.parametrize("name", HOSTILE_ARGUMENTS)
@repeat_on_stall
async def test_message_that_takes_long_to_decode_does_not_block_the_server(
    harness: McpHarness, name: str
) -> None:
    arguments, status = HOSTILE_ARGUMENTS[name]
    call = (
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"none","arguments":%b}}' % arguments
    )
    async with listening(harness) as (url, _, _), httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
        session = (await client.post(url, json=HELLO, headers=ACCEPT)).headers["mcp-session-id"]
        headers = {**ACCEPT, "Content-Type": "application/json", "Mcp-Session-Id": session}
        async with LoopStalls() as stalls:
            response = await client.post(url, content=call, headers=headers)
        assert response.status_code == status
    stalls.assert_short()


async def test_body_that_does_not_arrive_is_refused(app: Any) -> None:
    harness = McpHarness(app, request_seconds=0.1)
    async with listening(harness) as (url, _, _):
        host = urlsplit(url)
        reader, writer = await asyncio.open_connection(host.hostname, host.port)
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: {host.netloc}\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{{"
        )
        writer.write(head.encode())
        async with asyncio.timeout(TIMEOUT_SECONDS):
            response = await reader.read()
        writer.close()
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"body: did not arrive within 0.1 s" in response


class UserKeys:
    """Authenticates any key: `hk_` and a name is the key of the user with that name."""

    def __init__(self) -> None:
        self._known: dict[str, Identity] = {}

    async def authenticate(self, secret: str) -> Identity:
        if secret not in self._known:
            name = secret.removeprefix("hk_")
            user = User(id=name, name=name, data_key="", created_at="2031-01-01T00:00:00Z")
            key, _ = api_keys.create(user, "test", ["mcp"])
            self._known[secret] = Identity(user=user, key=key)
        return self._known[secret]


async def test_user_cannot_take_the_sessions_of_others(app: App) -> None:
    harness = McpHarness(app, max_mcp_sessions=4, max_mcp_sessions_per_user=3)
    ann, bo, operator = ({"Authorization": f"Bearer {key}"} for key in ("hk_ann", "hk_bo", "operator"))
    async with listening(harness, keys=UserKeys(), api_key="operator") as (url, _, _):
        answers = await asyncio.gather(*(hello(url, **ann) for _ in range(8)))
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "60"
        message = refused.json()["error"]["message"]
        assert message.startswith("A user may have at most 3 open MCP sessions (setting max_mcp_sessions_per")
        assert "ends after 1800 s" in message
        assert (await hello(url, **bo)).status_code == 200
        full = await hello(url, **bo)
        assert (full.status_code, full.headers["retry-after"]) == (503, "60")
        assert "(setting max_mcp_sessions)" in full.json()["error"]["message"]
        assert [(await hello(url, **operator)).status_code for _ in range(5)] == [200] * 4 + [503]


async def test_new_session_can_start_after_another_has_ended(app: App) -> None:
    harness = McpHarness(app, max_mcp_sessions_per_user=1)
    ann = {"Authorization": "Bearer hk_ann"}
    async with (
        listening(harness, keys=UserKeys(), api_key="operator") as (url, _, _),
        httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client,
    ):
        for _ in range(3):
            # Only requests that open a session count against the limit.
            assert (await client.post(url, content=b"{", headers={**ACCEPT, **ann})).status_code == 400
            assert (await client.get(url, headers={**ACCEPT, **ann})).status_code == 400
        opened = await hello(url, **ann)
        assert (await hello(url, **ann)).status_code == 429
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        assert (await client.delete(url, headers={**ann, **session})).status_code == 200
        async with asyncio.timeout(TIMEOUT_SECONDS):
            # The SDK ends the session only after it has answered the DELETE.
            while (await hello(url, **ann)).status_code == 429:
                pass
        assert (await hello(url, **ann)).status_code == 429


async def test_clients_without_sessions_have_no_share(app: App) -> None:
    harness = McpHarness(app, max_mcp_sessions=1)
    async with listening(harness) as (url, _, _), Client(url) as one, Client(url) as other:
        assert (await one.list_tools()).tools == (await other.list_tools()).tools


async def test_ending_a_session_ends_its_runs(harness: McpHarness) -> None:
    async with listening(harness) as (url, _, _):
        async with Client(url, mode="legacy") as client:
            running = asyncio.create_task(run_structured(client, WAIT["toolscript"]))
            await harness.upstream.called.wait()
            ending = ends_script(harness)
            await ending.__aenter__()
        await ending.__aexit__(None, None, None)
        with pytest.raises(MCPError, match="Connection closed"):
            await running


async def test_draining_server_finishes_runs_and_ends_idle_streams(harness: McpHarness) -> None:
    async with listening(harness, pass_through=True) as (url, access, mcp_server):
        async with (
            Client(url, mode="legacy") as client,
            Client(url) as other,
            other.listen(tools_list_changed=True) as events,
        ):
            running = asyncio.create_task(run_structured(client, WAIT["toolscript"]))
            await harness.upstream.called.wait()
            draining = asyncio.create_task(access.drain(TIMEOUT_SECONDS))
            await asyncio.sleep(0)
            assert (await hello(url)).status_code == 503
            refused = await other.call_tool("search_tools", {"query": "x"})
            assert "The server is shutting down" in text_of(refused)
            assert not draining.done()
            harness.upstream.released.set()
            assert (await running)["result"] == 1
            assert await draining
            assert [each async for each in events] == []
        assert mcp_server._lifetime is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await mcp_server._lifetime


async def test_expired_drain_ends_running_calls(harness: McpHarness, era: str) -> None:
    async with listening(harness) as (url, access, _), Client(url, mode=era) as client:
        running = asyncio.create_task(client.call_tool("run_code", {"code": WAIT["toolscript"]}))
        await harness.upstream.called.wait()
        async with ends_script(harness):
            await access.drain(0.01)
        answer = await running
        assert answer.is_error
        assert "The server is shutting down" in text_of(answer)


async def test_unused_endpoint_closes_at_once(harness: McpHarness) -> None:
    async with listening(harness) as (url, _, mcp_server):
        assert mcp_server._lifetime is None
    with pytest.raises(httpx2.HTTPError):
        await hello(url)


async def test_cors_allows_mcp_session_headers() -> None:
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
