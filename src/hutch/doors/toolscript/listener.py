"""The listener in a script's jail, for as long as the jail lasts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from hutch.doors.bounded import BoundedHttp
from hutch.doors.refusals import refusal
from hutch.doors.toolscript.relay import Relay
from hutch.settings import MIB

# At once, of one jail: each takes a descriptor of the host. More wait in the jail until one has ended.
MAX_CONNECTIONS = 128
# Before a connection that could not be taken is tried again: the host has no descriptor left, say.
_PAUSE_SECONDS = 0.1
# Of all requests of one jail that are under way: the host holds them, whatever the script's own bound.
MAX_BODY_BYTES = 32 * MIB


class _Http(BoundedHttp):
    """Tells when its connection is over."""

    def __init__(self, *args: Any, on_lost: Callable[[], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_lost()


class Caller(Protocol):
    """Who asks, out of a jail."""

    run_id: str | None


class Opened:
    """One listener in one jail."""

    def __init__(self, listener: socket.socket, relay: Relay, caller: Caller) -> None:
        self._relay = relay
        self._caller = caller
        self._state = ServerState()
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._held = 0
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
        self._accepting = asyncio.create_task(self._accept(listener, config))

    async def _accept(self, listener: socket.socket, config: uvicorn.Config) -> None:
        """Takes connections as long as there are places: those that wait take nothing of the host's."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)

        def protocol() -> _Http:
            return _Http(config=config, server_state=self._state, app_state={}, on_lost=self._places.release)

        with listener:
            while True:
                await self._places.acquire()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:
                    self._places.release()
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                try:
                    await loop.connect_accepted_socket(protocol, connection)
                except OSError:
                    connection.close()
                    self._places.release()

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
            await self._relay.answer(self._caller.run_id, scope, bounded, send)
        except HTTPException as error:
            await refusal(error.status_code, error.detail)(scope, receive, send)
        except ClientDisconnect:
            pass  # nobody hears it
        finally:
            self._held -= held

    def close(self) -> None:
        self._accepting.cancel()
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()
