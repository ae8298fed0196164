"""Real MCP servers, and sets of them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forked import lent
from tests.mcp_servers import everything
from tests.mcp_servers.serving import serving

from hutch.settings import Settings
from hutch.upstream.bounds import Bounds
from hutch.upstream.entries import Config, Endpoint, Program, ServerConfig
from hutch.upstream.servers import Upstreams

SERVERS = Path(everything.__file__).parent
Started = Callable[..., Awaitable[Upstreams]]
# Quick to find out what servers with all the time in the world would be given half a minute for.
QUICK = Bounds(connect_seconds=20, call_seconds=20, alive_seconds=0.3, retry_seconds=0.01, retries=0)


def program(name: str, *arguments: str, **options: Any) -> ServerConfig:
    """One of our own stdio servers; with `lent=False` a child of who starts it, though it takes a second."""
    fields = {key: options.pop(key) for key in ("env", "cwd") if key in options}
    if name == "everything":
        file = SERVERS / "everything.py"
        server = lent(file) if options.pop("lent", True) else [str(file)]
    else:
        server = [str(SERVERS / "hostile.py"), name]
    reach = Program(command=sys.executable, args=(*server, *arguments), **fields)
    return ServerConfig(name=options.pop("called", name), reach=reach, **options)


def endpoint(name: str, url: str, **options: Any) -> ServerConfig:
    fields = {key: options.pop(key) for key in ("headers", "protocol", "oauth") if key in options}
    return ServerConfig(name=name, reach=Endpoint(url=url, **fields), **options)


def config(*servers: ServerConfig) -> Config:
    return Config({each.name: each for each in servers})


@pytest.fixture
async def start() -> AsyncIterator[Started]:
    """Makes sets of servers, connected unless `eager` is false, and closes them."""
    made: list[Upstreams] = []

    async def make(
        *servers: ServerConfig, eager: bool = True, max_line_bytes: int | None = None, **options: Any
    ) -> Upstreams:
        settings = Settings() if max_line_bytes is None else Settings(max_line_bytes=max_line_bytes)
        made.append(Upstreams(config(*servers), settings, **{"bounds": QUICK, **options}))
        await made[-1].start(eager=eager)
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture(scope="session")
def urls() -> Iterator[dict[str, str]]:
    """The server that has everything, over HTTP."""
    http, json, sse = (everything.Everything() for _ in range(3))
    with (
        serving(everything.app(http)) as streamed,
        serving(everything.app(json, json_response=True)) as plain,
        serving(everything.sse_app(sse)) as events,
    ):
        yield {"http": f"{streamed.url}/mcp", "json": f"{plain.url}/mcp", "sse": f"{events.url}/sse"}


@pytest.fixture(scope="session")
async def everywhere(
    anyio_backend: object, environment: None, urls: dict[str, str]
) -> AsyncIterator[Upstreams]:
    """It, by every transport; for tests that leave it as it was."""
    servers = config(
        program("everything", called="stdio"),
        endpoint("http", urls["http"]),
        endpoint("json", urls["json"]),
        endpoint("sse", urls["sse"], protocol="sse"),
    )
    async with Upstreams(servers, Settings(), bounds=QUICK) as upstreams:
        await upstreams.start()
        yield upstreams


@pytest.fixture(params=["stdio", "http", "json", "sse"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)
