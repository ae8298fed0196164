"""The door over streamable HTTP, at `/mcp`: many clients, behind the gate."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import anyio
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from hutch.doors.gate import LEAVE_SECONDS, Gate
from hutch.doors.marks import SHUTTING_DOWN, VISITOR
from hutch.doors.mcp.loading import load
from hutch.doors.mcp.needs import Hutch
from hutch.doors.paths import Lane
from hutch.doors.refusals import Refusal, refusal

if TYPE_CHECKING:
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from hutch.doors.abilities.needs import Rooms
    from hutch.doors.mcp.server import Door
    from hutch.vault.apikeys import Caller

DOOR = "mcp"
_SOON = {"Retry-After": "1"}
MOST_CLIENTS = 1_000
# Since when a client must have been silent to be forgotten.
IDLE_SECONDS = 1_800.0
# How soon we notice that the server wants to end, and how long clients have to read what they got.
_LOOK_SECONDS = 0.5


class McpDoor:
    """Opens when the first client comes: the SDK takes a second to import. `close` it before the kernel."""

    def __init__(
        self, hutch: Hutch, gate: Gate, *, rooms: Rooms | None = None, pass_through: bool | None = None
    ) -> None:
        """`rooms` have users' abilities; `pass_through` is the setting of that name if it is not given."""
        self._hutch = hutch
        self._gate = gate
        self._rooms = rooms
        wanted = hutch.settings.mcp_pass_through if pass_through is None else pass_through
        self._pass_through = wanted
        self._closing = asyncio.Event()
        self._visits: set[anyio.CancelScope] = set()
        self._left = asyncio.Event()
        self._opened: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._living: asyncio.Task[None] | None = None

    def routes(self) -> list[BaseRoute]:
        return [Lane("/mcp", self, methods=["GET", "POST", "DELETE"])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        visitor = await self._gate.visitor(request, DOOR)
        if self._closing.is_set() or (self._gate.draining and _is_new(request)):
            visitor = visitor if isinstance(visitor, Refusal) else Refusal(503, SHUTTING_DOWN, _SOON)
        if isinstance(visitor, Refusal):
            await refusal(*visitor)(scope, receive, send)
            return
        manager = await self._manager()
        scope[VISITOR] = visitor
        if visitor.caller is not None:
            # By this the SDK sees to it that nobody else speaks on a session.
            scope["user"] = _authenticated(visitor.caller)
        with anyio.CancelScope() as visit:
            self._visits.add(visit)
            try:
                await manager.handle_request(scope, receive, send)
            finally:
                self._visits.discard(visit)
                self._left.set()

    async def close(self) -> None:
        """Ends everything that clients have begun."""
        self._closing.set()
        if self._living is not None:
            await self._living

    async def _manager(self) -> StreamableHTTPSessionManager:
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._living = asyncio.create_task(self._live(self._opened))
        return await asyncio.shield(self._opened)

    async def _live(self, opened: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            await load()
            from hutch.doors.mcp.server import Door

            door = Door(
                self._hutch,
                owner=self._gate.owner(),
                pass_through=self._pass_through,
                gate=self._gate,
                rooms=self._rooms,
            )
        except Exception as error:
            # Who comes next tries again.
            self._opened = None
            opened.set_exception(error)
            return
        manager = self._sessions(door)
        try:
            async with manager.run():
                try:
                    opened.set_result(manager)
                    await self._until_the_end(door)
                finally:
                    self._closing.set()
                    door.close()
        finally:
            # Clients without a session are not the manager's.
            await self._see_out()

    def _sessions(self, door: Door) -> StreamableHTTPSessionManager:
        """Without the SDK's own look at Host and Origin, which are the gate's business."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        return StreamableHTTPSessionManager(
            door.server,
            max_request_body_size=self._hutch.settings.max_body_bytes,
            max_sessions=MOST_CLIENTS,
            session_idle_timeout=IDLE_SECONDS,
        )

    async def _until_the_end(self, door: Door) -> None:
        """Streams on which clients wait for news would keep the server from ending."""
        while not self._closing.is_set():
            ending = self._gate.draining and not door.calls
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._closing.wait()
            if ending and not door.calls:
                return

    async def _see_out(self) -> None:
        """Whoever is told that it is over may hear it to the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                while self._visits:
                    self._left.clear()
                    await self._left.wait()
        for visit in self._visits:
            visit.cancel()


def _authenticated(caller: Caller) -> AuthenticatedUser:
    """Whose session it is: that of one key. The key itself stays where it came from."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    scopes = [*caller.key.scopes]
    return AuthenticatedUser(
        AccessToken(token="", client_id=caller.key.id, scopes=scopes, subject=caller.user.id)
    )


def _is_new(request: Request) -> bool:
    """Whether a client is about to introduce itself; of those that have, all requests name one of these."""
    return not {"mcp-session-id", "mcp-protocol-version"}.intersection(request.headers)
