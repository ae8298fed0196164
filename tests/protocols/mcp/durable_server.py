"""MCP servers whose runs are suspended while they wait for approvals. A server is an App with fake tools. Two
servers with the same home are like one server before and after a restart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.types import ElicitResult
from tests.protocols.mcp.harness import SERVERS, TOOLS
from tests.protocols.toolscript.fakes import FakeToolSource, returning

from hutch.app.app import App
from hutch.protocols.mcp.server import HutchMcpServer
from hutch.settings import load_settings

MODERN = "2026-07-28"
ALLOW, DENY = ElicitResult(action="accept", content={}), ElicitResult(action="decline")


class DurableServer:
    """An MCP server whose runs are suspended while they wait for approvals."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.upstream = FakeUpstream(*TOOLS, servers=SERVERS)
        self.upstream.functions.update(
            create_issue=returning({"number": 7}), list_issues=returning([{"number": 1}])
        )
        app.mcp_servers = self.upstream  # type: ignore[misc]
        app.store_approvals()
        self.mcp = HutchMcpServer(app)

    @property
    def made(self) -> list[str]:
        """Returns the names of the called tools, in the order of the calls."""
        return [tool for _, tool, _ in self.upstream.calls]

    @asynccontextmanager
    async def client(self, mode: str = MODERN, **options: Any) -> AsyncIterator[Client]:
        async with Client(self.mcp.server, mode=mode, **options) as client:
            yield client


class FakeUpstream(FakeToolSource):
    async def close(self) -> None:
        pass


@asynccontextmanager
async def serving(home: Path, **settings: Any) -> AsyncIterator[DurableServer]:
    values = {
        "home": str(home),
        "quickjs_warm": 0,
        "deno_warm": 0,
        "approvals": {"github__create_issue": "ask"},
    }
    app = await App.create(load_settings({**values, **settings}))
    server = DurableServer(app)
    try:
        yield server
    finally:
        server.mcp.close()
        await app.close()


def person(answer: ElicitResult) -> Any:
    """Returns an elicitation callback that records the questions and gives this answer to each."""
    asked: list[str] = []

    async def callback(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return answer

    callback.asked = asked  # type: ignore[attr-defined]
    return callback
