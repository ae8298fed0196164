"""WebSocket client for `/execbox`: the host side of the Execbox protocol, one message at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tests.support.processes import TIMEOUT_SECONDS
from websockets.asyncio.client import ClientConnection, connect


class ExecboxClient:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    @property
    def response_headers(self) -> Mapping[str, str]:
        """Headers of the response to the upgrade request."""
        assert self.socket.response is not None
        return self.socket.response.headers

    async def send(self, *messages: dict[str, Any] | str | bytes) -> None:
        for message in messages:
            await self.socket.send(json.dumps(message) if isinstance(message, dict) else message)

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            message: dict[str, Any] = json.loads(await self.socket.recv())
        return message

    async def call(self, id: str) -> dict[str, Any]:
        """Receives the next message, and checks that the message is a tool call of this execution."""
        call = await self.receive()
        assert (call["type"], call["id"]) == ("tool_call", id)
        return call

    async def started(self, id: str) -> None:
        assert await self.receive() == {"type": "started", "id": id}

    async def done(self, id: str) -> dict[str, Any]:
        """Receives `started` and `done` of an execution that calls no tools. Returns `done`."""
        await self.started(id)
        return await self.end(id)

    async def end(self, id: str) -> dict[str, Any]:
        message = await self.receive()
        assert (message["type"], message["id"]) == ("done", id)
        return message


@contextlib.asynccontextmanager
async def connect_execbox(url: str, **headers: str) -> AsyncIterator[ExecboxClient]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with connect(url, additional_headers=named, proxy=None, compression=None) as socket:
        yield ExecboxClient(socket)
