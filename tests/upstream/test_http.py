"""Servers elsewhere: headers, statuses, restarts, bounds, and which protocol it is."""

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
from tests.mcp_servers.everything import Everything, app, sse_app
from tests.mcp_servers.serving import Serving, serving
from tests.processes import PATIENCE
from tests.upstream.conftest import QUICK, Started, endpoint, program
from tests.waiting import eventually

from hutch.errors import UpstreamError
from hutch.upstream.servers import Upstreams
from hutch.upstream.tools import Server

MIB = 1024 * 1024
Answer = Callable[[dict[str, Any]], Response]


@pytest.fixture
def served() -> Iterator[Serving]:
    made = Serving()
    yield made
    made.stop()


def only(upstreams: Upstreams) -> Server:
    (server,) = upstreams.servers()
    return server


async def failure(upstreams: Upstreams, tool: str = "act", **arguments: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await upstreams.call(only(upstreams).name, tool, arguments)
    return caught.value


def raw(act: Answer) -> Starlette:
    """A server that introduces itself and answers calls of its tool `act` as it is told."""

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


async def test_headers_of_the_configuration_are_sent(start: Started, urls: dict[str, str]) -> None:
    upstreams = await start(
        endpoint("http", urls["http"], headers={"X-Key": "k", "Authorization": "Bearer t"}),
        endpoint("sse", urls["sse"], headers={"X-Key": "k"}, protocol="sse"),
    )
    found = await upstreams.call("http", "headers", {})
    assert (found["x-key"], found["authorization"]) == ("k", "Bearer t")
    assert (await upstreams.call("sse", "headers", {}))["x-key"] == "k"


async def test_protocol_that_was_not_told_is_found_out(start: Started, urls: dict[str, str]) -> None:
    upstreams = await start(
        endpoint("new", urls["http"], protocol="either"), endpoint("old", urls["sse"], protocol="either")
    )
    for name in ("new", "old"):
        assert await upstreams.call(name, "echo", {"value": "hi"}) == "hi"


async def test_address_where_nobody_listens_is_named(start: Started) -> None:
    free = Serving()
    url = f"{free.url}/mcp"
    free.stop()
    upstreams = await start(endpoint("gone", url.replace("//", "//user:s3cret@") + "?key=s3cret"))
    assert only(upstreams).state == "failed"
    assert (only(upstreams).error or "").startswith(f"{url} cannot be reached: ")
    error = await failure(upstreams)
    assert error.kind == "not_connected"
    assert "s3cret" not in str(error)


ODD: list[tuple[Callable[[], Response], str]] = [
    (lambda: PlainTextResponse("try\nlater", 503), "answers HTTP 503 Service Unavailable: try later"),
    (lambda: JSONResponse({"message": "no such key"}, 403), "answers HTTP 403 Forbidden: no such key"),
    (lambda: Response("<html>", 500, media_type="text/html"), "answers HTTP 500 Internal Server Error"),
    (lambda: Response(b"\xff" * 100_000, 400), "answers HTTP 400 Bad Request"),
    (lambda: Response(status_code=404), "answers HTTP 404 Not Found"),
    (lambda: Response("<html>", media_type="text/html"), "Unexpected content type"),
    (lambda: Response("{nonsense", media_type="application/json"), "Failed to parse JSON response"),
    (lambda: Response(status_code=302, headers={"location": "http://x.example/"}), "not followed"),
    (lambda: Response(status_code=401), "it wants a login: run `hutch auth odd`"),
]


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    """Where every case of ODD is a server, by its number."""

    async def mcp(request: Request) -> Response:
        return ODD[request.path_params["number"]][0]()

    with serving(Starlette(routes=[Route("/{number:int}", mcp, methods=["GET", "POST"])])) as served:
        yield served.url


@pytest.mark.parametrize("number", range(len(ODD)))
async def test_server_that_answers_something_else_is_quoted(start: Started, odd: str, number: int) -> None:
    upstreams = await start(endpoint("odd", f"{odd}/{number}"))
    assert only(upstreams).state == "failed"
    assert ODD[number][1] in (only(upstreams).error or "")


async def test_server_that_never_answers_is_given_up(start: Started, served: Serving) -> None:
    async def mcp(_: Request) -> Response:
        await asyncio.sleep(60)
        return Response()

    served.start(Starlette(routes=[Route("/mcp", mcp, methods=["GET", "POST"])]))
    for protocol in ("http", "sse"):
        upstreams = await start(endpoint("mute", f"{served.url}/mcp", protocol=protocol, connect_seconds=0.3))
        assert only(upstreams).error == "it did not introduce itself within 0.3 s"


async def test_call_that_is_refused_names_the_status_and_ends_nothing(
    start: Started, served: Serving
) -> None:
    answers = iter([PlainTextResponse("busy", 503), PlainTextResponse("", 418), JSONResponse({})])
    served.start(raw(lambda message: next(answers, JSONResponse(good(message)))))
    upstreams = await start(endpoint("odd", f"{served.url}/mcp"))
    error = await failure(upstreams)
    assert (error.kind, error.message) == ("not_connected", "HTTP 503 Service Unavailable: busy")
    assert (await failure(upstreams)).message == "HTTP 418 I'm a Teapot"
    assert "Failed to parse JSON response" in (await failure(upstreams)).message
    assert only(upstreams).state == "connected"
    assert await upstreams.call("odd", "act", {}) == "acted"


def over_sse(act: Callable[[dict[str, Any]], str]) -> Starlette:
    """The same as `raw` for SSE, at /sse: `act` gives the text of an answer."""
    said: asyncio.Queue[str] = asyncio.Queue()

    async def sse(_: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            yield "event: endpoint\ndata: /post\n\n"
            while True:
                yield f"event: message\ndata: {await said.get()}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def post(request: Request) -> Response:
        message = await request.json()
        if message.get("method") == "tools/call":
            said.put_nowait(act(message))
        elif "id" in message:
            result = RESULTS[message["method"]]
            said.put_nowait(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        return Response(status_code=202)

    return Starlette(routes=[Route("/sse", sse), Route("/post", post, methods=["POST"])])


async def test_event_that_is_no_answer_fails_its_call_alone(start: Started, served: Serving) -> None:
    texts = iter(['{"jsonrpc":"2.0","id":%d,"result":{"text":"\\ud800"}}', '{"id":%d,"result":"a text"}'])

    def act(message: dict[str, Any]) -> str:
        text = next(texts, None)
        return json.dumps(good(message)) if text is None else text % message["id"]

    served.start(over_sse(act))
    upstreams = await start(endpoint("odd", f"{served.url}/sse", protocol="sse"))
    async with asyncio.timeout(20):
        first, second = await failure(upstreams), await failure(upstreams)
        assert (first.kind, first.message) == ("invalid_result", "the answer is not JSON")
        assert (second.kind, second.message) == ("invalid_result", "the answer is not as JSON-RPC has it")
        assert await upstreams.call("odd", "act", {}) == "acted"


def endless(message: dict[str, Any], before: bytes) -> AsyncIterator[bytes]:
    async def parts() -> AsyncIterator[bytes]:
        yield before + json.dumps(good(message)).encode()[:-10]
        for _ in range(100):
            yield b"x" * MIB

    return parts()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_answer_of_100_mb_fails_its_call_alone(start: Started, served: Serving, kind: str) -> None:
    before = b"" if kind == "application/json" else b"data: "
    large = [True]

    def act(message: dict[str, Any]) -> Response:
        if large:
            large.clear()
            return StreamingResponse(endless(message, before), media_type=kind)
        return JSONResponse(good(message))

    served.start(raw(act))
    upstreams = await start(endpoint("odd", f"{served.url}/mcp"), max_line_bytes=MIB)
    assert (await failure(upstreams)).kind == "too_large"
    assert only(upstreams).state == "connected"
    assert await upstreams.call("odd", "act", {}) == "acted"


async def test_answer_that_is_too_large_for_sse_says_so(start: Started, urls: dict[str, str]) -> None:
    upstreams = await start(endpoint("old", urls["sse"], protocol="sse"))
    assert (await failure(upstreams, "large", bytes=2 * MIB)).kind == "too_large"
    assert await upstreams.call("old", "zero", {}) == "0"


async def test_answer_that_would_unpack_to_much_more_is_not_unpacked(start: Started, served: Serving) -> None:
    def act(message: dict[str, Any]) -> Response:
        packed = gzip.compress(json.dumps(good(message, "x" * 50 * MIB)).encode())
        return Response(packed, media_type="application/json", headers={"content-encoding": "gzip"})

    served.start(raw(act))
    upstreams = await start(endpoint("odd", f"{served.url}/mcp"))
    assert "the answer is compressed (gzip)" in (await failure(upstreams)).message
    assert only(upstreams).state == "connected"


@pytest.mark.parametrize("protocol", ["http", "sse"])
async def test_server_that_was_restarted_is_found_again_at_the_next_call(
    start: Started, served: Serving, protocol: str
) -> None:
    make, path = (app, "mcp") if protocol == "http" else (sse_app, "sse")
    served.start(make(Everything()))
    upstreams = await start(endpoint("web", f"{served.url}/{path}", protocol=protocol))
    assert await upstreams.call("web", "echo", {"value": "1"}) == "1"
    await asyncio.to_thread(served.stop)
    await asyncio.to_thread(served.start, make(Everything()))
    assert await upstreams.call("web", "echo", {"value": "2"}) == "2"


@pytest.mark.parametrize("protocol", ["http", "sse"])
async def test_server_that_is_gone_is_said_to_be_gone_and_had_back_when_it_returns(
    start: Started, served: Serving, protocol: str
) -> None:
    make, path = (app, "mcp") if protocol == "http" else (sse_app, "sse")
    served.start(make(Everything()))
    upstreams = await start(endpoint("web", f"{served.url}/{path}", protocol=protocol), program("Server"))
    waiting = asyncio.ensure_future(upstreams.call("web", "slow", {}))
    await until_started(upstreams)
    await asyncio.to_thread(served.stop)
    with pytest.raises(UpstreamError) as caught:
        await waiting
    assert caught.value.kind == "lost"
    with pytest.raises(UpstreamError) as caught:
        await upstreams.call("web", "echo", {"value": "x"})
    assert caught.value.kind == "not_connected"
    assert "cannot be reached" in caught.value.message
    assert await upstreams.call("Server", "act", {}) == "acted"
    await asyncio.to_thread(served.start, make(Everything()))
    await asyncio.sleep(QUICK.pause_seconds)
    assert await upstreams.call("web", "echo", {"value": "x"}) == "x"


async def until_started(upstreams: Upstreams) -> None:
    async with asyncio.timeout(20):
        while (await upstreams.call("web", "counts", {}))["started"] == 0:
            pass


async def test_session_is_ended_at_the_server_when_we_leave(start: Started, served: Serving) -> None:
    ended: list[str] = []
    inner = app(Everything())

    async def watching(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "DELETE":
            ended.append(scope["path"])
        await inner(scope, receive, send)

    served.start(watching)
    upstreams = await start(endpoint("web", f"{served.url}/mcp"))
    await upstreams.close()
    await eventually(lambda: ended == ["/mcp"])


async def test_server_that_hangs_does_not_keep_us_from_leaving(start: Started, served: Serving) -> None:
    asked = threading.Event()

    def act(message: dict[str, Any]) -> Response:
        async def never() -> AsyncIterator[bytes]:
            asked.set()
            await asyncio.sleep(60)
            yield b""

        return StreamingResponse(never(), media_type="application/json")

    served.start(raw(act))
    upstreams = await start(endpoint("odd", f"{served.url}/mcp"))
    call = asyncio.ensure_future(upstreams.call("odd", "act", {}))
    await asyncio.to_thread(asked.wait, PATIENCE)
    async with asyncio.timeout(10):
        await upstreams.close()
    with pytest.raises(UpstreamError):
        await call


async def test_both_kinds_of_servers_work_beside_each_other(start: Started, urls: dict[str, str]) -> None:
    with serving(app(Everything(), stateless_http=True)) as stateless:
        upstreams = await start(
            endpoint("a", urls["http"]), endpoint("b", f"{stateless.url}/mcp"), program("Server")
        )
        assert [each.state for each in upstreams.servers()] == ["connected"] * 3
        assert await upstreams.call("b", "add", {"a": 1, "b": 1}) == {"sum": 2}
