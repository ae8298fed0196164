"""Routes of Execbox: `POST /run`, `/sessions` and the WebSocket `/execbox`.

On the WebSocket, the client acts as the host and may run several executions at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from hutch.http.auth import AccessControl, Caller
from hutch.http.errors import SHUTTING_DOWN, Refusal
from hutch.http.responses import error_response
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.kernel.kernel import Kernel
from hutch.kernel.sessions.sessions import Sessions
from hutch.protocols.execbox import http_sessions
from hutch.protocols.execbox.channel_runs import ChannelRuns
from hutch.protocols.execbox.channel_sessions import ChannelSessions
from hutch.protocols.execbox.http_run import PATH as RUN_PATH
from hutch.protocols.execbox.http_run import PROTOCOL, ProvideTools, RunHandler
from hutch.protocols.execbox.queued_code import QueuedCode
from hutch.protocols.execbox.serve import serve
from hutch.queue.queue import RunQueue
from hutch.session.channels.websocket import (
    DURABLE_EXTENSION,
    EXTENSIONS_HEADER,
    FILES_EXTENSION,
    SESSIONS_EXTENSION,
    WebSocketChannel,
    parse_extensions,
)
from hutch.session.extensions.server_side import ChannelExtensions
from hutch.session.files.model import FileLimits
from hutch.session.runner import PendingBytes
from hutch.settings import Settings

PATH = "/execbox"


def routes(
    kernel: Kernel,
    access: AccessControl,
    mcp_tools: ProvideTools,
    suspended_runs: SuspendedRuns,
    sessions: Sessions,
    queue: RunQueue | None = None,
) -> list[BaseRoute]:
    """`mcp_tools` provides the tools of the server's MCP servers to `POST /run`. `queue` executes
    asynchronous runs.
    """
    pending = PendingBytes(kernel.settings.max_pending_bytes)
    run_handler = RunHandler(kernel, access, pending, mcp_tools, suspended_runs)
    if queue is not None:
        queue.add_handler(QueuedCode(run_handler, kernel, suspended_runs))

    async def execbox(socket: WebSocket) -> None:
        caller = await access.authenticate(socket, PROTOCOL)
        if isinstance(caller, Caller) and access.is_draining:
            caller = Refusal(503, SHUTTING_DOWN, {"Retry-After": "1"})
        if isinstance(caller, Refusal):
            await socket.send_denial_response(error_response(*caller))
            return
        granted = parse_extensions(socket.headers.getlist(EXTENSIONS_HEADER))
        answer = [(EXTENSIONS_HEADER.encode(), ", ".join(granted).encode())] if granted else []
        await socket.accept(headers=answer)
        channel = _channel(socket)
        serving = serve(
            channel,
            kernel,
            owner=caller.owner,
            multiplexed=True,
            pending=pending,
            admit=access.admit,
            extensions=_extensions(granted, kernel.settings),
            sessions=ChannelSessions(sessions) if SESSIONS_EXTENSION in granted else None,
            runs=ChannelRuns(suspended_runs) if DURABLE_EXTENSION in granted else None,
        )
        async with access.track_connection(serving, channel):
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                text = message.get("text")
                data = message.get("bytes") or b"" if text is None else text.encode()
                # Let other tasks run between messages that arrived together, and before the channel processes
                # a long message that the server has just decoded.
                await asyncio.sleep(0)
                if not channel.is_ended:
                    await serving.receive(data)
                # Backpressure: while a client does not read the server's messages, read none of its messages,
                # so that the output buffer stays small.
                await channel.writable()
            channel.on_disconnect("the client closed the connection")

    async def upgrade_required(request: Request) -> Response:
        caller = await access.authenticate(request, PROTOCOL)
        if isinstance(caller, Refusal):
            return error_response(*caller)
        url = f"ws://{request.headers['host']}{PATH}"
        return error_response(
            426, f"This is a WebSocket endpoint; connect to {url}", {"Upgrade": "websocket"}
        )

    return [
        WebSocketRoute(PATH, execbox),
        Route(PATH, upgrade_required),
        run_handler.protocol.route(RUN_PATH, POST=run_handler.run),
        *http_sessions.routes(run_handler, sessions, kernel.settings),
    ]


def _extensions(granted: Sequence[str], settings: Settings) -> ChannelExtensions:
    files = sealed = None
    if FILES_EXTENSION in granted:
        files = FileLimits(settings.max_files, settings.max_file_bytes)
    if DURABLE_EXTENSION in granted:
        sealed_bytes = settings.max_checkpoint_bytes + 2 * settings.max_file_bytes
        sealed = FileLimits(1, sealed_bytes, "max_checkpoint_bytes")
    return ChannelExtensions(files=files, sealed=sealed)


def _channel(socket: WebSocket) -> WebSocketChannel:
    async def send(text: str) -> None:
        try:
            await socket.send_text(text)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ConnectionError("the client closed the connection") from error

    async def close(reason: str) -> None:
        try:
            await socket.close(1001, reason)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ConnectionError("the client closed the connection") from error

    return WebSocketChannel(send, close)
