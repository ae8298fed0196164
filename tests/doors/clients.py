"""The other end of the Execbox door: a host, one message at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.processes import PATIENCE
from websockets.asyncio.client import ClientConnection, connect


class Host:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, *messages: dict[str, Any] | str | bytes) -> None:
        for each in messages:
            await self.socket.send(json.dumps(each) if isinstance(each, dict) else each)

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            message: dict[str, Any] = json.loads(await self.socket.recv())
        return message

    async def call(self, id: str) -> dict[str, Any]:
        """The next message, which must be a tool call of this execution."""
        call = await self.hear()
        assert (call["type"], call["id"]) == ("tool_call", id)
        return call

    async def started(self, id: str) -> None:
        assert await self.hear() == {"type": "started", "id": id}

    async def done(self, id: str) -> dict[str, Any]:
        """What is said last of an execution that calls no tools."""
        await self.started(id)
        return await self.end(id)

    async def end(self, id: str) -> dict[str, Any]:
        message = await self.hear()
        assert (message["type"], message["id"]) == ("done", id)
        return message


@contextlib.asynccontextmanager
async def host(url: str, **headers: str) -> AsyncIterator[Host]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with connect(url, additional_headers=named, proxy=None, compression=None) as socket:
        yield Host(socket)
