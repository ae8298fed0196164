"""What stands between a script and its gateway: bounded towards the script, and true to the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.egress.servers import SECONDS, connected, serving
from uvicorn.server import ServerState

from hutch.doors import bounded, heads
from hutch.doors.toolscript import listener, server
from hutch.doors.toolscript.listener import Opened
from hutch.doors.toolscript.relay import Relay
from hutch.doors.toolscript.there import There


async def echo(request: Request) -> Response:
    return PlainTextResponse(await request.body() + request.headers.get("x-hutch-run", "-").encode())


ECHO = Starlette(routes=[Route("/", echo, methods=["POST"])])
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n!"


@contextlib.asynccontextmanager
async def relayed(made: Relay) -> AsyncIterator[int]:
    """The port at which a script would find it."""
    listener = socket.create_server(("127.0.0.1", 0))
    way = Opened(listener, made)
    way.run_id = "a run"
    try:
        yield listener.getsockname()[1]
    finally:
        way.close()


def to(app: ASGIApp) -> Relay:
    return Relay(app, host="gateway", token=None)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other side cuts the connection, without a word."""
    async with asyncio.timeout(SECONDS):
        with contextlib.suppress(ConnectionError):
            return await reader.read() == b""
    return True


Front = Callable[[], contextlib.AbstractAsyncContextManager[int]]
"""Opens who reads what comes over a network, ours or uvicorn's."""


@contextlib.asynccontextmanager
async def by_uvicorn() -> AsyncIterator[int]:
    """As `hutch serve` does, for a client that says which run it is of."""

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        await ECHO({**scope, "headers": [*scope["headers"], (b"x-hutch-run", b"a run")]}, receive, send)

    config = uvicorn.Config(told, http=bounded.BoundedHttp, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    made = await loop.create_server(
        lambda: bounded.BoundedHttp(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield made.sockets[0].getsockname()[1]
    finally:
        made.close()
        for connection in list(state.connections):
            connection.transport.abort()


@pytest.fixture(params=["jail", "serve"])
def front(request: pytest.FixtureRequest) -> Front:
    if request.param == "serve":
        return by_uvicorn
    return lambda: relayed(to(ECHO))


# --- what is spoken ---


async def answers(port: int, said: bytes) -> bytes:
    """All that comes back, up to the end of the connection."""
    async with connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(said)
        return await reader.read()


LAST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\n?"


async def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    async with relayed(to(ECHO)) as port:
        said = await answers(port, REQUEST + REQUEST + LAST)
    assert [part[:1] for part in said.split(b"\r\n\r\n")[1:]] == [b"!", b"!", b"?"]


async def test_more_requests_at_once_than_wait_are_cut_off() -> None:
    async with relayed(to(ECHO)) as port, connected(port) as (reader, writer):
        writer.write(REQUEST * (server.MAX_WAITING + 2))
        assert await ended(reader)


async def test_connection_is_kept_for_who_does_not_close_it() -> None:
    async with relayed(to(ECHO)) as port, connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        for _ in range(3):
            writer.write(REQUEST)
            assert b"!a run" in await reader.readuntil(b"!a run")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n!!", b"400"),
        (b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
    ],
    ids=["no request", "another protocol", "two lengths", "no address"],
)
async def test_what_is_no_request_is_refused_and_the_connection_ended(said: bytes, status: bytes) -> None:
    async with relayed(to(ECHO)) as port:
        assert (await answers(port, said)).startswith(b"HTTP/1.1 " + status)


async def test_answer_in_parts_comes_as_they_do_and_whole() -> None:
    async def in_parts(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one ", b"", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async with (
        relayed(to(in_parts)) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for method, expected in (("GET", "one two"), ("HEAD", ""), ("GET", "one two")):
            assert (await client.request(method, "/")).text == expected


async def test_application_that_fails_is_an_answer_that_says_so() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret")

    async with relayed(to(failing)) as port:
        said = await answers(port, REQUEST)
    assert said.startswith(b"HTTP/1.1 500")
    assert b"secret" not in said


async def test_after_the_last_answer_of_a_connection_nothing_more_is_done() -> None:
    asked: list[str] = []

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        raise RuntimeError("no")

    async with relayed(to(failing)) as port:
        said = await answers(port, REQUEST + REQUEST)
    assert said.count(b"HTTP/1.1 500") == 1
    assert asked == ["/"]


async def test_heads_count_too_however_small_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_BODY_BYTES", 10_000)
    head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 100 + b"\r\n"
    async with relayed(to(ECHO)) as port:
        assert (await answers(port, head)).startswith(b"HTTP/1.1 413")


async def test_more_headers_than_anybody_needs_are_refused() -> None:
    head = b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 300 + b"\r\n"
    async with relayed(to(ECHO)) as port:
        assert (await answers(port, head)).startswith(b"HTTP/1.1 400")


async def test_jail_that_ends_while_somebody_connects_is_closed_all_the_same() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    address = taken.getsockname()
    way = Opened(taken, to(ECHO))
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*address)
        way.close()
        writer.write(REQUEST)
        assert await ended(reader)
        writer.close()


async def test_who_waits_for_leave_to_send_its_body_gets_it() -> None:
    async with relayed(to(ECHO)) as port, connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"!")
        assert b"!a run" in await reader.readuntil(b"!a run")


# --- bounds ---


async def test_connections_beyond_a_jails_share_wait_for_one_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)
    asked: list[None] = []

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(None)
        await ECHO(scope, receive, send)

    async with relayed(to(counted)) as port, contextlib.AsyncExitStack() as stack, asyncio.timeout(SECONDS):
        kept = [await stack.enter_async_context(connected(port)) for _ in range(5)]
        for _, writer in kept:
            writer.write(REQUEST)
        for reader, _ in kept[:2]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        # Those that have a place are answered once more before any of the others.
        kept[0][1].write(REQUEST)
        while (await kept[0][0].readline()) != b"":
            if len(asked) == 3:
                break
        for place, (reader, _) in enumerate(kept[2:]):
            assert len(asked) == 3 + place
            kept[place][1].close()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_place_that_became_free_is_given_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 1)
    async with relayed(to(ECHO)) as port:
        for _ in range(3):
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                assert (await client.post("/", content=b"!")).text == "!a run"


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["address", "header", "trailer"],
)
async def test_head_without_an_end_is_cut_off(beginning: bytes, front: Front) -> None:
    async with front() as port, connected(port) as (reader, writer):
        writer.write(beginning)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"x" * heads.MAX_HEAD_BYTES)
                await writer.drain()
        assert await ended(reader)


@pytest.mark.parametrize(
    ("first", "beginning"),
    [
        (b"", b""),
        (b"", b"GET / HT"),
        (REQUEST, b"\r\n"),
        (REQUEST, b"GET / HTTP/1.1\r\nX: "),
        (REQUEST + b"G", b""),
    ],
    ids=["nothing", "slow", "after another", "of a second", "with the end of another"],
)
async def test_head_that_does_not_come_to_its_end_is_cut_off(
    first: bytes, beginning: bytes, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "HEAD_SECONDS", 0.05)
    async with front() as port, connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(first)
        if first:
            assert b"!a run" in await reader.readuntil(b"!a run")
        writer.write(beginning)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def test_head_in_time_gives_body_and_answer_all_the_time_they_take(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "HEAD_SECONDS", 0.05)
    async with front() as port, connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n!")
        await asyncio.sleep(0.2)
        writer.write(b"!")
        assert b"!!a run" in await reader.readuntil(b"a run")


async def test_body_is_not_counted_as_a_head(front: Front) -> None:
    body = b"x" * (4 * heads.MAX_HEAD_BYTES)
    async with front() as port, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            assert (await client.post("/", content=body)).content == body + b"a run"


async def test_requests_of_one_jail_are_bounded_together_and_those_that_are_over_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "MAX_BODY_BYTES", 100_000)
    async with (
        relayed(to(ECHO)) as port,
        connected(port) as (_, writer),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as client,
    ):
        for _ in range(3):
            assert (await client.post("/", content=b"x" * 90_000)).status_code == 200
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"x" * 50_000)
        await writer.drain()
        async with asyncio.timeout(SECONDS):
            while (await client.post("/", content=b"x" * 90_000)).status_code != 413:
                pass
        assert (await client.post("/", content=b"x" * 40_000)).status_code == 200


# --- a gateway elsewhere ---


@contextlib.asynccontextmanager
async def elsewhere(port: int) -> AsyncIterator[int]:
    """The port at which a script finds a gateway that is elsewhere."""
    world = There(f"http://127.0.0.1:{port}", None)
    try:
        async with relayed(world.relay) as near:
            yield near
    finally:
        await world.close()


async def test_gateway_elsewhere_hears_what_the_script_said_and_whose_it_is() -> None:
    async with (
        relayed(to(ECHO)) as far,
        elsewhere(far) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert (await client.post("/", content=b"hello ")).text == "hello a run"


async def test_body_that_no_gateway_would_take_is_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_BODY_BYTES", 10_000)
    async with (
        elsewhere(1) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert (await client.post("/", content=b"x" * 11_000)).status_code == 413


async def test_answer_that_breaks_off_does_not_pass_for_a_whole_one() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with (
        serving(break_off) as far,
        elsewhere(far) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get("/")


async def test_script_that_goes_takes_its_call_elsewhere_along() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with relayed(to(patient)) as far, elsewhere(far) as port, asyncio.timeout(SECONDS):
        async with connected(port) as (_, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asked.wait()
        await gone.wait()
