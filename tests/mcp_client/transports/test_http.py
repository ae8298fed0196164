"""HTTP servers: headers, status codes, restarts, limits and the choice of protocol."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.mcp_client.conftest import SHORT_LIMITS, StartServers, http_server, stdio_server
from tests.support.mcp_servers.asgi_server import AsgiServer, running_app
from tests.support.mcp_servers.everything import Everything, app, sse_app
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.waiting import eventually

from hutch.errors import UpstreamError
from hutch.mcp_client.servers import McpServers
from hutch.mcp_client.tools import ServerStatus

MIB = 1024 * 1024
Answer = Callable[[dict[str, Any]], Response]


@pytest.fixture
def served() -> Iterator[AsgiServer]:
    made = AsgiServer()
    yield made
    made.stop()


def only(servers: McpServers) -> ServerStatus:
    (server,) = servers.servers()
    return server


async def failure(servers: McpServers, tool: str = "act", **arguments: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await servers.call(only(servers).name, tool, arguments)
    return caught.value


def raw(act: Answer) -> Starlette:
    """Returns a minimal server. The given function makes the HTTP response to calls of its tool `act`."""

    async def mcp(request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        if "id" not in message:
            return Response(status_code=202)
        if message["method"] == "tools/call":
            return act(message)
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": RESULTS[message["method"]]})

    return Starlette(routes=[Route("/mcp", mcp, methods=["GET", "POST", "DELETE"])])


RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "raw", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
    "ping": {},
}


def good(message: dict[str, Any], text: str = "acted") -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": content}}


async def test_configured_headers_are_sent(start: StartServers, urls: dict[str, str]) -> None:
    servers = await start(
        http_server("http", urls["http"], headers={"X-Key": "k", "Authorization": "Bearer t"}),
        http_server("sse", urls["sse"], headers={"X-Key": "k"}, protocol="sse"),
    )
    found = await servers.call("http", "headers", {})
    assert (found["x-key"], found["authorization"]) == ("k", "Bearer t")
    assert (await servers.call("sse", "headers", {}))["x-key"] == "k"


async def test_unspecified_protocol_is_detected(start: StartServers, urls: dict[str, str]) -> None:
    servers = await start(
        http_server("new", urls["http"], protocol="either"),
        http_server("old", urls["sse"], protocol="either"),
    )
    for name in ("new", "old"):
        assert await servers.call(name, "echo", {"value": "hi"}) == "hi"


async def test_connection_refused_is_reported_with_the_address(start: StartServers) -> None:
    free = AsgiServer()
    url = f"{free.url}/mcp"
    free.stop()
    servers = await start(http_server("gone", url.replace("//", "//user:s3cret@") + "?key=s3cret"))
    assert only(servers).state == "failed"
    assert (only(servers).error or "").startswith(f"{url} cannot be reached: ")
    error = await failure(servers)
    assert error.kind == "not_connected"
    assert "s3cret" not in str(error)


ODD: list[tuple[Callable[[], Response], str]] = [
    (lambda: PlainTextResponse("try\nlater", 503), "responds with HTTP 503 Service Unavailable: try later"),
    (lambda: JSONResponse({"message": "no such key"}, 403), "responds with HTTP 403 Forbidden: no such key"),
    (lambda: Response("<html>", 500, media_type="text/html"), "responds with HTTP 500 Internal Server Error"),
    (lambda: Response(b"\xff" * 100_000, 400), "responds with HTTP 400 Bad Request"),
    (lambda: Response(status_code=404), "responds with HTTP 404 Not Found"),
    (lambda: Response("<html>", media_type="text/html"), "Unexpected content type"),
    (lambda: Response("{garbage", media_type="application/json"), "Failed to parse JSON response"),
    (lambda: Response(status_code=302, headers={"location": "http://x.example/"}), "not followed"),
    (lambda: Response(status_code=401), "it requires a login: run `hutch auth odd`"),
]


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    """Serves each case of ODD at the path `/N`, where N is the number of the case. Yields the URL."""

    async def mcp(request: Request) -> Response:
        return ODD[request.path_params["number"]][0]()

    with running_app(Starlette(routes=[Route("/{number:int}", mcp, methods=["GET", "POST"])])) as served:
        yield served.url


@pytest.mark.parametrize("number", range(len(ODD)))
async def test_error_response_of_a_server_is_quoted(start: StartServers, odd: str, number: int) -> None:
    servers = await start(http_server("odd", f"{odd}/{number}"))
    assert only(servers).state == "failed"
    assert ODD[number][1] in (only(servers).error or "")


async def test_server_that_never_responds_times_out(start: StartServers, served: AsgiServer) -> None:
    async def mcp(_: Request) -> Response:
        await asyncio.sleep(60)
        return Response()

    served.start(Starlette(routes=[Route("/mcp", mcp, methods=["GET", "POST"])]))
    for protocol in ("http", "sse"):
        servers = await start(
            http_server("mute", f"{served.url}/mcp", protocol=protocol, connect_seconds=0.3)
        )
        assert only(servers).error == "it did not initialize within 0.3 s"


async def test_refused_call_reports_the_status_and_keeps_the_connection(
    start: StartServers, served: AsgiServer
) -> None:
    answers = iter([PlainTextResponse("busy", 503), PlainTextResponse("", 418), JSONResponse({})])
    served.start(raw(lambda message: next(answers, JSONResponse(good(message)))))
    servers = await start(http_server("odd", f"{served.url}/mcp"))
    error = await failure(servers)
    assert (error.kind, error.message) == ("not_connected", "HTTP 503 Service Unavailable: busy")
    assert (await failure(servers)).message == "HTTP 418 I'm a Teapot"
    assert "Failed to parse JSON response" in (await failure(servers)).message
    assert only(servers).state == "connected"
    assert await servers.call("odd", "act", {}) == "acted"


def over_sse(act: Callable[[dict[str, Any]], str]) -> Starlette:
    """Like `raw`, but with the SSE transport at /sse. `act` returns the text of the message that the server
    sends as the response.
    """
    messages: asyncio.Queue[str] = asyncio.Queue()

    async def sse(_: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            yield "event: endpoint\ndata: /post\n\n"
            while True:
                yield f"event: message\ndata: {await messages.get()}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def post(request: Request) -> Response:
        message = await request.json()
        if message.get("method") == "tools/call":
            messages.put_nowait(act(message))
        elif "id" in message:
            result = RESULTS[message["method"]]
            messages.put_nowait(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        return Response(status_code=202)

    return Starlette(routes=[Route("/sse", sse), Route("/post", post, methods=["POST"])])


async def test_invalid_event_fails_only_its_call(start: StartServers, served: AsgiServer) -> None:
    texts = iter(['{"jsonrpc":"2.0","id":%d,"result":{"text":"\\ud800"}}', '{"id":%d,"result":"a text"}'])

    def act(message: dict[str, Any]) -> str:
        text = next(texts, None)
        return json.dumps(good(message)) if text is None else text % message["id"]

    served.start(over_sse(act))
    servers = await start(http_server("odd", f"{served.url}/sse", protocol="sse"))
    async with asyncio.timeout(20):
        first, second = await failure(servers), await failure(servers)
        assert (first.kind, first.message) == ("invalid_result", "the response is not JSON")
        assert (second.kind, second.message) == ("invalid_result", "the response is not valid JSON-RPC")
        assert await servers.call("odd", "act", {}) == "acted"


def endless(message: dict[str, Any], before: bytes) -> AsyncIterator[bytes]:
    async def parts() -> AsyncIterator[bytes]:
        yield before + json.dumps(good(message)).encode()[:-10]
        for _ in range(100):
            yield b"x" * MIB

    return parts()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_response_of_100_mb_fails_only_its_call(
    start: StartServers, served: AsgiServer, kind: str
) -> None:
    before = b"" if kind == "application/json" else b"data: "
    large = [True]

    def act(message: dict[str, Any]) -> Response:
        if large:
            large.clear()
            return StreamingResponse(endless(message, before), media_type=kind)
        return JSONResponse(good(message))

    served.start(raw(act))
    servers = await start(http_server("odd", f"{served.url}/mcp"), max_line_bytes=MIB)
    assert (await failure(servers)).kind == "too_large"
    assert only(servers).state == "connected"
    assert await servers.call("odd", "act", {}) == "acted"


async def test_response_too_large_for_sse_is_reported(start: StartServers, urls: dict[str, str]) -> None:
    servers = await start(http_server("old", urls["sse"], protocol="sse"), max_line_bytes=MIB)
    assert (await failure(servers, "large", bytes=2 * MIB)).kind == "too_large"
    assert await servers.call("old", "zero", {}) == "0"


async def test_compressed_response_is_not_unpacked(start: StartServers, served: AsgiServer) -> None:
    def act(message: dict[str, Any]) -> Response:
        packed = gzip.compress(json.dumps(good(message, "x" * 50 * MIB)).encode())
        return Response(packed, media_type="application/json", headers={"content-encoding": "gzip"})

    served.start(raw(act))
    servers = await start(http_server("odd", f"{served.url}/mcp"))
    assert "the response is compressed (gzip)" in (await failure(servers)).message
    assert only(servers).state == "connected"


@pytest.mark.parametrize("protocol", ["http", "sse"])
async def test_restarted_server_is_reconnected_at_the_next_call(
    start: StartServers, served: AsgiServer, protocol: str
) -> None:
    make, path = (app, "mcp") if protocol == "http" else (sse_app, "sse")
    served.start(make(Everything()))
    servers = await start(http_server("web", f"{served.url}/{path}", protocol=protocol))
    assert await servers.call("web", "echo", {"value": "1"}) == "1"
    await asyncio.to_thread(served.stop)
    await asyncio.to_thread(served.start, make(Everything()))
    assert await servers.call("web", "echo", {"value": "2"}) == "2"


@pytest.mark.parametrize("protocol", ["http", "sse"])
async def test_call_sent_before_the_restart_is_noticed_is_repeated(
    start: StartServers, served: AsgiServer, protocol: str
) -> None:
    make, path = (app, "mcp") if protocol == "http" else (sse_app, "sse")
    served.start(make(Everything()))
    servers = await start(http_server("web", f"{served.url}/{path}", protocol=protocol))
    assert await servers.call("web", "echo", {"value": "1"}) == "1"
    # Do not run the event loop while the server restarts. So the client sends its call before it notices that
    # the stream has ended.
    served.stop()
    served.start(make(Everything()))
    assert await servers.call("web", "echo", {"value": "2"}) == "2"


@pytest.mark.parametrize("protocol", ["http", "sse"])
async def test_stopped_server_is_reported_and_reconnected_when_it_returns(
    start: StartServers, served: AsgiServer, protocol: str
) -> None:
    make, path = (app, "mcp") if protocol == "http" else (sse_app, "sse")
    served.start(make(Everything()))
    servers = await start(
        http_server("web", f"{served.url}/{path}", protocol=protocol), stdio_server("Server")
    )
    waiting = asyncio.ensure_future(servers.call("web", "slow", {}))
    await until_started(servers)
    await asyncio.to_thread(served.stop)
    with pytest.raises(UpstreamError) as caught:
        await waiting
    assert caught.value.kind == "lost"
    with pytest.raises(UpstreamError) as caught:
        await servers.call("web", "echo", {"value": "x"})
    assert caught.value.kind == "not_connected"
    assert "cannot be reached" in caught.value.message
    assert await servers.call("Server", "act", {}) == "acted"
    await asyncio.to_thread(served.start, make(Everything()))
    await asyncio.sleep(SHORT_LIMITS.failure_seconds)
    assert await servers.call("web", "echo", {"value": "x"}) == "x"


async def until_started(servers: McpServers) -> None:
    async with asyncio.timeout(20):
        while (await servers.call("web", "counts", {}))["started"] == 0:
            pass


async def test_session_is_ended_at_the_server_on_close(start: StartServers, served: AsgiServer) -> None:
    ended: list[str] = []
    inner = app(Everything())

    async def watching(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "DELETE":
            ended.append(scope["path"])
        await inner(scope, receive, send)

    served.start(watching)
    servers = await start(http_server("web", f"{served.url}/mcp"))
    await servers.close()
    await eventually(lambda: ended == ["/mcp"])


async def test_hanging_server_does_not_block_close(start: StartServers, served: AsgiServer) -> None:
    asked = threading.Event()

    def act(message: dict[str, Any]) -> Response:
        async def never() -> AsyncIterator[bytes]:
            asked.set()
            await asyncio.sleep(60)
            yield b""

        return StreamingResponse(never(), media_type="application/json")

    served.start(raw(act))
    servers = await start(http_server("odd", f"{served.url}/mcp"))
    call = asyncio.ensure_future(servers.call("odd", "act", {}))
    await asyncio.to_thread(asked.wait, TIMEOUT_SECONDS)
    async with asyncio.timeout(10):
        await servers.close()
    with pytest.raises(UpstreamError):
        await call


async def test_stdio_and_http_servers_work_together(start: StartServers, urls: dict[str, str]) -> None:
    with running_app(app(Everything(), stateless_http=True)) as stateless:
        servers = await start(
            http_server("a", urls["http"]), http_server("b", f"{stateless.url}/mcp"), stdio_server("Server")
        )
        assert [each.state for each in servers.servers()] == ["connected"] * 3
        assert await servers.call("b", "add", {"a": 1, "b": 1}) == {"sum": 2}
