"""The listener in a script's jail, for as long as the jail lasts."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from hutch.doors.toolscript.relay import Relay
from hutch.doors.toolscript.server import Held, Http
from hutch.sandbox.network import readable
from hutch.settings import MIB

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

# At once, of one jail: each takes a descriptor of the host. More wait in the jail until one has ended.
MAX_CONNECTIONS = 128
# Before a connection that could not be taken is tried again: the host has no descriptor left, say.
_PAUSE_SECONDS = 0.1
# Of all requests of one jail that are under way: the host holds them, whatever the script's own bound.
MAX_BODY_BYTES = 32 * MIB


class Opened:
    """One listener in one jail: the way of a script, to the gateway."""

    def __init__(self, listener: socket.socket, relay: Relay) -> None:
        self.run_id: str | None = None
        self._relay = relay
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self.held = Held(MAX_BODY_BYTES)
        self._connections: set[Http] = set()
        self._closed = False
        self._accepting = asyncio.create_task(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        """Takes connections as long as there are places: those that wait take nothing of the host's."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        with listener:
            while True:
                await self._places.acquire()
                try:
                    await readable(listener.fileno())
                    # Not by the loop: what it accepts for a task that is cancelled meanwhile is lost.
                    connection, _ = listener.accept()
                except OSError:
                    self._places.release()
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                try:
                    await loop.connect_accepted_socket(lambda: Http(self), connection)
                except OSError:
                    connection.close()
                    self._places.release()

    def joined(self, connection: Http) -> bool:
        self._connections.add(connection)
        return not self._closed

    def left(self, connection: Http) -> None:
        self._connections.discard(connection)
        self._places.release()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._relay.answer(self.run_id, scope, receive, send)

    def close(self) -> None:
        self._closed = True
        self._accepting.cancel()
        for connection in list(self._connections):
            connection.abort()
