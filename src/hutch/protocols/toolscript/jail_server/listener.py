"""Listening socket in a script's jail. Passes requests to the gateway."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hutch.protocols.toolscript.jail_server.http1 import (
    ByteBudget,
    JailConnection,
    JailRequest,
    JailResponse,
)
from hutch.sandbox.jail.netns import wait_readable
from hutch.settings import MIB

if TYPE_CHECKING:
    from hutch.protocols.toolscript.execute import ScriptGateway

# Maximum number of open connections per jail, because each takes a file descriptor of the host. Further
# connections wait in the jail.
MAX_CONNECTIONS = 128
# Delay after a failed accept, for example if the host has no file descriptor left.
_RETRY_SECONDS = 0.1
# Maximum memory for all unfinished requests of one jail. It is memory of the host.
MAX_BODY_BYTES = 32 * MIB


class JailListener:
    """The listening socket in one jail. Forwards requests to the gateway."""

    def __init__(self, listener: socket.socket, gateway: ScriptGateway) -> None:
        self.run_id: str | None = None
        self._gateway = gateway
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self.request_bytes = ByteBudget(MAX_BODY_BYTES)
        self._connections: set[JailConnection] = set()
        self._closed = False
        self._accepting = asyncio.create_task(self._accept(listener))

    def begin_run(self, run_id: str) -> Sequence[Any]:
        """Called before a run starts. Returns the list of the run's outgoing requests. It is always empty,
        because requests to the gateway are recorded as tool calls.
        """
        self.run_id = run_id
        return ()

    async def _accept(self, listener: socket.socket) -> None:
        """Accepts connections while slots are free. Connections that are not accepted yet use no resources of
        the host.
        """
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        with listener:
            while True:
                await self._slots.acquire()
                try:
                    await wait_readable(listener.fileno())
                    # Do not use loop.sock_accept, because a connection accepted for a cancelled task would be
                    # lost.
                    connection, _ = listener.accept()
                except OSError:
                    self._slots.release()
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                try:
                    await loop.connect_accepted_socket(lambda: JailConnection(self), connection)
                except OSError:
                    connection.close()
                    self._slots.release()

    def connection_opened(self, connection: JailConnection) -> bool:
        self._connections.add(connection)
        return not self._closed

    def connection_closed(self, connection: JailConnection) -> None:
        self._connections.discard(connection)
        self._slots.release()

    async def handle(self, request: JailRequest, response: JailResponse) -> None:
        await self._gateway.handle(self.run_id, request, response)

    def close(self) -> None:
        self._closed = True
        self._accepting.cancel()
        for connection in list(self._connections):
            connection.abort()
