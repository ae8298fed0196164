"""Connection of a client to a Hutch server: opens the WebSocket, and sends executions over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from hutch.errors import HutchError, InvalidExecution, SandboxUnavailable
from hutch.kernel.execution import Execution
from hutch.session.channels.websocket import (
    ALL_EXTENSIONS,
    DURABLE_EXTENSION,
    EXTENSIONS_HEADER,
    FILES_EXTENSION,
    WebSocketChannel,
    parse_extensions,
)
from hutch.session.extensions.client_session import ClientSession
from hutch.session.extensions.messages import ResumeRequest
from hutch.session.host import Session
from hutch.session.multiplexer import Multiplexer
from hutch.session.run import Result, RunHandle, new_run_id
from hutch.telemetry.trace_context import calling_span

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

EXECBOX_PATH = "/execbox"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class RemoteConnection:
    """Connects on first use, and reconnects if the connection was lost."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = _execbox_url(url)
        self._api_key = api_key
        self._multiplexer: Multiplexer | None = None
        self._channel: WebSocketChannel | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._extensions: Sequence[str] = ()
        """Extensions that the server has granted."""

    async def open(self) -> None:
        """Raises SandboxUnavailable if the server cannot be reached."""
        await self._connected()

    async def require(self, extension: str, noun: str) -> None:
        """Raises HutchError if the server does not support an extension. `noun` describes it."""
        await self._connected()
        self._check(extension, noun)

    def _check(self, extension: str, noun: str) -> None:
        if extension not in self._extensions:
            raise HutchError(
                f"{self.url} does not support {noun}.", remedy="Use a Hutch server that supports them."
            )

    async def execute(
        self,
        execution: Execution,
        run: RunHandle,
        request: ResumeRequest | None = None,
        on_resumed: Callable[[], None] | None = None,
    ) -> tuple[Session, Result]:
        """Sends an execution, and waits for its result. `request` makes it an action on a suspended run.
        `on_resumed` is called when the server continues this run.
        """
        multiplexer = await self._connected()
        if request is not None:
            self._check(DURABLE_EXTENSION, "suspended runs")
        elif execution.files is not None:
            self._check(FILES_EXTENSION, "files")
        session = run.session = ClientSession(
            new_run_id(),
            execution.code,
            execution.limits,
            execution.providers,
            multiplexer.peer,
            on_started=run.report_started,
            inputs=execution.inputs,
            listeners=run.listeners,
            trace=calling_span(),
        )
        session.suspend_problem = self._suspend_problem(execution)
        session.uploads = execution.files
        session.resume_request, session.on_resumed = request, on_resumed
        multiplexer.add(session)
        try:
            session.begin()
            if execution.files is not None:
                await session.send_files()
            if run.must_suspend:
                session.suspend(run.on_suspend_refused)
            return session, await session.wait()
        except asyncio.CancelledError:
            session.cancel()
            raise
        finally:
            multiplexer.forget(session)

    def _suspend_problem(self, execution: Execution) -> str:
        if DURABLE_EXTENSION not in self._extensions:
            return f"{self.url} does not support it. Use a Hutch server that does"
        if execution.limits.session is not None:
            return "a turn of a session cannot be suspended"
        can_suspend = execution.profile.engine_spec.can_suspend
        return "" if can_suspend else "only code in Hutch's own quickjs engine can be suspended"

    async def close(self) -> None:
        """Cancels running executions and closes the connection."""
        self._closed = True
        multiplexer, channel, reader = self._multiplexer, self._channel, self._reader
        self._multiplexer = self._channel = self._reader = None
        if multiplexer is None or channel is None or reader is None:
            return
        for session in list(multiplexer.sessions.values()):
            if isinstance(session, Session):
                session.cancel()
        multiplexer.close()
        await channel.finished()
        reader.cancel()
        await asyncio.wait({reader})

    async def _connected(self) -> Multiplexer:
        if self._closed:
            raise HutchError("This connection was closed.", remedy="Create a new one with hutch.connect().")
        async with self._connecting:
            if self._multiplexer is None or self._multiplexer.close_reason is not None:
                self._multiplexer = await self._connect()
            return self._multiplexer

    async def _connect(self) -> Multiplexer:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        headers = {EXTENSIONS_HEADER: ", ".join(ALL_EXTENSIONS)}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        try:
            socket = await connect(
                self.url, additional_headers=headers, max_size=MAX_MESSAGE_BYTES, compression=None
            )
        except InvalidStatus as error:
            raise SandboxUnavailable(f"{self.url} {_explain_status(error.response.status_code)}") from None
        except (OSError, WebSocketException, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SandboxUnavailable(
                f"{self.url} cannot be reached: {reason}.", remedy="Is `hutch serve` running there?"
            ) from None
        granted = socket.response.headers.get_all(EXTENSIONS_HEADER) if socket.response else []
        self._extensions = parse_extensions(granted)
        self._channel = _channel(socket)
        self._reader = asyncio.get_running_loop().create_task(_read(socket, self._channel))
        return Multiplexer(self._channel, full_manifests=True, trusted=True)


def _execbox_url(url: str) -> str:
    """Adds the default path if the URL has no path. Raises InvalidExecution if it is not a WebSocket URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise InvalidExecution(
            "url", f"expected a URL such as ws://127.0.0.1:4111{EXECBOX_PATH}, got {url!r}"
        )
    if "@" in parts.netloc:
        raise InvalidExecution("url", "expected a URL without a user; pass the key as `api_key`")
    return urlunsplit(parts if parts.path.strip("/") else parts._replace(path=EXECBOX_PATH))


def _explain_status(status: int) -> str:
    if status == 401:
        return "refused the connection: the API key is missing or wrong."
    if status == 404:
        return f"has no Execbox endpoint (404): on a Hutch server its path is {EXECBOX_PATH}."
    return f"refused the connection: it answered {status}."


def _channel(socket: ClientConnection) -> WebSocketChannel:
    from websockets.exceptions import ConnectionClosed

    async def send(text: str) -> None:
        try:
            await socket.send(text)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def close(reason: str) -> None:
        await socket.close(1000, reason)

    return WebSocketChannel(send, close)


async def _read(socket: ClientConnection, channel: WebSocketChannel) -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            channel.feed(await socket.recv())
    except ConnectionClosed as error:
        channel.on_disconnect(str(error))
