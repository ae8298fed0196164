"""What a script finds at its gateway's address: the gateway, which is told the run and shown the token."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from hutch.doors.bounded import BoundedHttp
from hutch.doors.gate import RUN, RUN_HEADER
from hutch.doors.refusals import refusal
from hutch.settings import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

# At once, of one jail: each takes a descriptor of the host.
MAX_CONNECTIONS = 128
# Of all requests of one jail that are under way: the host holds them, whatever the script's own bound.
MAX_BODY_BYTES = 32 * MIB


class Relay:
    """Where scripts' requests go: to an application of this process, or to a gateway elsewhere.

    By identity: scripts of two relays do not share runners.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str | None = None) -> None:
        """`host` is the name by which the gateway knows itself; `token` is what it asks for."""
        self._app = app
        self._host = host.encode()
        self._token = token

    async def answer(self, run_id: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = [*self._headers(scope["headers"], run_id)]
        await self._app({**scope, "headers": headers, RUN: run_id}, receive, send)

    def _headers(
        self, given: Iterable[tuple[bytes, bytes]], run_id: str | None
    ) -> Iterable[tuple[bytes, bytes]]:
        yield b"host", self._host
        if self._token is not None:
            yield b"authorization", f"Bearer {self._token}".encode()
        if run_id is not None:
            yield RUN_HEADER.encode(), run_id.encode()
        ours = {b"host", b"authorization", b"origin", RUN_HEADER.encode()}
        yield from ((name, value) for name, value in given if name.lower() not in ours)


class _Http(BoundedHttp):
    """Cuts off whoever comes when there are too many already."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()


class _Open:
    """One listener in one jail."""

    def __init__(self, relay: Relay) -> None:
        self.run_id: str | None = None
        self._relay = relay
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._held = 0

    async def listen(self, listener: socket.socket) -> None:
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
        )
        config.load()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Http(config=config, server_state=self._state, app_state={}), sock=listener
        )

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = 0

        async def bounded() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            held += size
            self._held += size
            if self._held > MAX_BODY_BYTES:
                raise HTTPException(413, f"A script's requests may have {MAX_BODY_BYTES} bytes at a time")
            return message

        try:
            await self._relay.answer(self.run_id, scope, bounded, send)
        except HTTPException as error:
            await refusal(error.status_code, error.detail)(scope, receive, send)
        finally:
            self._held -= held

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()


async def open_relay(listener: socket.socket, relay: Relay) -> _Open:
    opened = _Open(relay)
    await opened.listen(listener)
    return opened
