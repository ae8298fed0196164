"""MCP over streamable HTTP at `/mcp`, for many clients."""

from __future__ import annotations

import asyncio
import contextlib
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from hutch.http.auth import ABORT_SECONDS, AccessControl
from hutch.http.errors import ERROR_KINDS, SHUTTING_DOWN, ApiError, Refusal
from hutch.http.requests import JsonBodyReader
from hutch.http.responses import error_response
from hutch.http.routing import PrefixRoute
from hutch.protocols.mcp.interfaces import CALLER, McpServices
from hutch.protocols.mcp.session_shares import IDLE_SECONDS, SESSION_SHARE, SessionShares
from hutch.session.json_value import MAX_DEPTH
from hutch.settings import MIB
from hutch.strict_json import find_excess

if TYPE_CHECKING:
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from hutch.protocols.abilities.routes import AbilityServices
    from hutch.protocols.mcp.server import HutchMcpServer
    from hutch.vault.api_keys import Identity

PROTOCOL = "mcp"
_RETRY_SOON = {"Retry-After": "1"}
# Limits of a message. The SDK decodes and validates it in one piece, during which no other request is served:
# 4 MiB of escapes take 20 ms, 50 000 keys 25 ms.
MAX_MESSAGE_BYTES = 4 * MIB
MAX_MESSAGE_VALUES = 50_000
# Interval at which the endpoint checks for a shutdown. During a shutdown, clients have this time to read
# their last responses.
_SHUTDOWN_POLL_SECONDS = 0.5


class McpEndpoint:
    """MCP endpoint. It starts when the first client connects, because importing the SDK takes a second.

    Close it before the kernel.
    """

    def __init__(
        self,
        hutch: McpServices,
        access: AccessControl,
        *,
        services: AbilityServices | None = None,
        pass_through: bool | None = None,
    ) -> None:
        """`services` provide users' abilities. `pass_through` overrides the setting `mcp_pass_through`."""
        self._hutch = hutch
        self._access = access
        self._services = services
        default = hutch.settings.mcp_pass_through
        self._pass_through = default if pass_through is None else pass_through
        settings = hutch.settings
        self._body = JsonBodyReader(min(settings.max_body_bytes, MAX_MESSAGE_BYTES), settings.request_seconds)
        self._shares = SessionShares(settings.max_mcp_sessions, settings.max_mcp_sessions_per_user)
        self._closing = asyncio.Event()
        self._open_requests: set[anyio.CancelScope] = set()
        self._request_ended = asyncio.Event()
        self._manager_ready: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._lifetime: asyncio.Task[None] | None = None

    def routes(self) -> list[BaseRoute]:
        return [PrefixRoute("/mcp", self, methods=["GET", "POST", "DELETE"])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        caller = await self._access.authenticate(request, PROTOCOL)
        if self._closing.is_set() or (self._access.is_draining and _is_first_request(request)):
            caller = caller if isinstance(caller, Refusal) else Refusal(503, SHUTTING_DOWN, _RETRY_SOON)
        if isinstance(caller, Refusal):
            await error_response(*caller)(scope, receive, send)
            return
        if request.method == "POST":
            try:
                receive = _replay(await self._read_message(request), receive)
            except ApiError as error:
                status = ERROR_KINDS[error.kind].status
                await error_response(status, error.message)(scope, receive, send)
                return
            except ClientDisconnect:
                return
        manager = await self._manager()
        scope[CALLER] = caller
        if caller.identity is not None:
            # Pass the user to the SDK, so that the SDK rejects requests of other users on the same session.
            scope["user"] = _authenticated_user(caller.identity)
        share = self._shares.reserve(caller) if _may_open_session(request) else None
        if isinstance(share, Refusal):
            await error_response(*share)(scope, receive, send)
            return
        scope[SESSION_SHARE] = share
        with anyio.CancelScope() as request_scope:
            self._open_requests.add(request_scope)
            try:
                await manager.handle_request(scope, receive, send)
            finally:
                if share is not None:
                    share.end_request()
                self._open_requests.discard(request_scope)
                self._request_ended.set()

    async def _read_message(self, request: Request) -> bytes:
        """Reads the message. Raises ApiError if the SDK would need long to decode it."""
        body = await self._body.read_bytes(request)
        excess = find_excess(body, MAX_DEPTH, MAX_MESSAGE_VALUES)
        if excess == "values":
            message = f"body: expected at most {MAX_MESSAGE_VALUES} values. Send less data in one message."
            raise ApiError("too_large", message)
        if excess == "depth":
            raise ApiError("invalid_request", f"body: expected at most {MAX_DEPTH} nested levels.")
        # Let other tasks run, because counting the values takes up to 20 ms.
        await asyncio.sleep(0)
        return body

    async def close(self) -> None:
        """Cancels all requests of clients."""
        self._closing.set()
        if self._lifetime is not None:
            await self._lifetime

    async def _manager(self) -> StreamableHTTPSessionManager:
        if self._manager_ready is None:
            self._manager_ready = asyncio.get_running_loop().create_future()
            self._lifetime = asyncio.create_task(self._serve(self._manager_ready))
        return await asyncio.shield(self._manager_ready)

    async def _serve(self, ready: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            await load_sdk()
            from hutch.protocols.mcp.server import HutchMcpServer

            mcp_server = HutchMcpServer(
                self._hutch,
                owner=self._access.owner(),
                pass_through=self._pass_through,
                access=self._access,
                services=self._services,
            )
        except Exception as error:
            # Let the next client try to start the endpoint again.
            self._manager_ready = None
            ready.set_exception(error)
            return
        manager = self._session_manager(mcp_server)
        try:
            async with manager.run():
                try:
                    ready.set_result(manager)
                    await self._wait_for_shutdown(mcp_server)
                finally:
                    self._closing.set()
                    mcp_server.close()
        finally:
            # Finish the requests of clients without a session, because the session manager does not track
            # them.
            await self._finish_requests()

    def _session_manager(self, mcp_server: HutchMcpServer) -> StreamableHTTPSessionManager:
        """Creates the session manager without Host and Origin checks, because `http.auth` does them."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        return StreamableHTTPSessionManager(
            mcp_server.server,
            max_request_body_size=self._body.max_bytes,
            max_sessions=None,  # `SessionShares` limits the sessions instead
            session_idle_timeout=IDLE_SECONDS,
        )

    async def _wait_for_shutdown(self, mcp_server: HutchMcpServer) -> None:
        """Waits until the server drains and no call is in progress. Open notification streams are ignored,
        because they never end.
        """
        while not self._closing.is_set():
            is_ending = self._access.is_draining and not mcp_server.calls
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SHUTDOWN_POLL_SECONDS):
                    await self._closing.wait()
            if is_ending and not mcp_server.calls:
                return

    async def _finish_requests(self) -> None:
        """Waits a short time for open responses, then cancels the remaining requests."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                while self._open_requests:
                    self._request_ended.clear()
                    await self._request_ended.wait()
        for request_scope in self._open_requests:
            request_scope.cancel()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns an ASGI receive function that first returns `body`, which was read already, and then calls
    `receive`.
    """
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return parts.pop() if parts else await receive()

    return receive_again


def _authenticated_user(identity: Identity) -> AuthenticatedUser:
    """Identifies a user by the id of the API key. The key itself is not passed to the SDK."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    scopes = [*identity.key.scopes]
    return AuthenticatedUser(
        AccessToken(token="", client_id=identity.key.id, scopes=scopes, subject=identity.user.id)
    )


def _is_first_request(request: Request) -> bool:
    """Returns True for the first request of a client. Every later request has one of these headers."""
    return not {"mcp-session-id", "mcp-protocol-version"}.intersection(request.headers)


def _may_open_session(request: Request) -> bool:
    """Returns True if the SDK opens a session for the request. Protocol versions without a handshake have no
    sessions.
    """
    from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS

    version = request.headers.get("mcp-protocol-version")
    return "mcp-session-id" not in request.headers and (
        version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
    )


# --- import of the SDK ---


async def load_sdk() -> None:
    """Imports the SDK in a thread. Afterwards, importing `hutch.protocols.mcp.server` takes no time."""
    await asyncio.to_thread(_import_sdk)


def _import_sdk() -> None:
    # Import the module that the MCP client imports first. The SDK has circular imports. If two threads
    # started with different modules at the same time, one of the threads would see a partially initialised
    # module.
    import_module("hutch.mcp_client.connection")
    import_module("hutch.protocols.mcp.server")
