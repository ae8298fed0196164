"""Client for a remote Hutch server. Code runs on the server, tools run in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from urllib.parse import urlsplit, urlunsplit

import msgspec

from hutch.errors import Busy, HutchError, InvalidExecution, SandboxUnavailable, SessionError
from hutch.kernel.error_hints import with_unavailable_servers
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import check_limit
from hutch.sandbox.runner.profile import profile_for
from hutch.session.channels.websocket import EXTENSIONS_HEADER, SESSIONS_EXTENSION, WebSocketChannel
from hutch.session.events.live_run import Run
from hutch.session.events.log_relay import relay_logs
from hutch.session.host import Session
from hutch.session.inputs import encode_inputs
from hutch.session.json_value import encode_value
from hutch.session.limits import Limits
from hutch.session.messages import SessionRequest
from hutch.session.multiplexer import Multiplexer
from hutch.session.run import Result, RunHandle, RunQueued, new_run_id, refused_result
from hutch.session.tools.provider import Provider, check_providers
from hutch.telemetry.trace_context import calling_span

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from hutch.api.options import (
        Engine,
        McpConfig,
        RemoteOptions,
        RemoteStartOptions,
        Tools,
        TurnOptions,
    )
    from hutch.api.stateful_session import Session as StatefulSession
    from hutch.kernel.sessions.sessions import SessionInfo, Variable
    from hutch.protocols.toolscript.providers import McpConfigurations

EXECBOX_PATH = "/execbox"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# Upper bound for the parts of an `execute` message other than code and tools.
OVERHEAD_BYTES = 4096
_DEFAULT_LIMITS = Limits()


class Remote:
    """Execbox client with the API of `hutch.Hutch`. Executions may run concurrently.

    Connects on first use, and reconnects if the connection was lost.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self._url = _execbox_url(url)
        self._api_key = api_key
        self._multiplexer: Multiplexer | None = None
        self._channel: WebSocketChannel | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._has_sessions = False

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        code: str,
        *,
        tools: Tools = None,
        inputs: Mapping[str, Any] | None = None,
        on_log: Callable[[str], object] | None = None,
        engine: Engine | None = None,
        mcp: McpConfig | None = None,
        check: bool = False,
        timeout_ms: float | None = None,
        memory_limit_bytes: int | None = None,
        max_log_lines: int | None = None,
        max_log_chars: int | None = None,
    ) -> Result:
        """Runs guest code on the server; see `Hutch.run`. The server determines the owner and the maximum of
        each limit, and checks types. MCP servers run in this process.

        Raises SandboxUnavailable if the server cannot be reached.
        """
        execution = await self._execution(
            code,
            tools=tools,
            inputs=inputs,
            engine=engine,
            mcp=mcp,
            check=check,
            timeout_ms=timeout_ms,
            memory_limit_bytes=memory_limit_bytes,
            max_log_lines=max_log_lines,
            max_log_chars=max_log_chars,
        )
        if on_log is None:
            return await self._execute(execution, RunHandle())
        return await relay_logs(on_log, partial(self._execute, execution))

    async def start(self, code: str, **options: Unpack[RemoteStartOptions]) -> Run:
        """Starts guest code on the server without waiting for its result; see `Hutch.start`."""
        # The id is empty, because the server chooses it.
        return Run(partial(self._execute, await self._execution(code, **options)), RunHandle(id=""))

    def session(self, session_id: str | None = None) -> StatefulSession:
        """Returns a session on the server; see `Hutch.session`. The turns of the session share their
        variables and use tools of this process.

        The methods of the session raise HutchError if the server does not support sessions.
        """
        from hutch.api.stateful_session import Session as StatefulSession
        from hutch.kernel.sessions.sessions import check_session_id, new_session_id

        if session_id is None:
            session_id = new_session_id()
        check_session_id(session_id)

        async def sessions() -> _RemoteSessions:
            return _RemoteSessions(self)

        async def execution(code: str, options: TurnOptions) -> Execution:
            return await self._execution(code, **options)

        # The owner is empty, because the server determines it.
        return StatefulSession(session_id, "", sessions, execution)

    async def sessions(self) -> list[SessionInfo]:
        """Lists the caller's sessions on the server, the last used one first."""
        return await _RemoteSessions(self).list()

    async def run_session_request(
        self, request: SessionRequest, execution: Execution, run: RunHandle
    ) -> Result:
        """Runs an action on a session of the server. Raises SessionError, and HutchError if the server does
        not support sessions.
        """
        await self._connected()
        if not self._has_sessions:
            raise HutchError(
                f"{self._url} does not support sessions.", remedy="Use a Hutch server that supports them."
            )
        limits = msgspec.structs.replace(execution.limits, session=request)
        result = await self._execute(msgspec.structs.replace(execution, limits=limits), run)
        error = result.error
        if error is not None and error.code == "internal_error" and error.name in SessionError.CODES:
            raise SessionError(error.name, error.message)
        return result

    async def _execution(
        self,
        code: str,
        *,
        tools: Tools = None,
        inputs: Mapping[str, Any] | None = None,
        engine: Engine | None = None,
        mcp: McpConfig | None = None,
        check: bool = False,
        timeout_ms: float | None = None,
        memory_limit_bytes: int | None = None,
        max_log_lines: int | None = None,
        max_log_chars: int | None = None,
    ) -> Execution:
        """Raises InvalidExecution or InvalidTool."""
        from hutch.api.options import check_code, providers_of

        check_code(code)
        providers = providers_of(tools)
        unavailable: dict[str, str] = {}
        if mcp is not None:
            servers, unavailable = await self._mcp_configurations.providers(mcp)
            providers += servers
        check_providers(providers)
        encoded = encode_inputs(inputs, providers)
        _check_size(code, providers, encoded)
        profile = profile_for(engine or "quickjs")
        return Execution(
            code=code,
            profile=profile,
            limits=Limits(
                timeout_ms=_limit("timeout_ms", timeout_ms),
                memory_limit_bytes=int(_limit("memory_limit_bytes", memory_limit_bytes)),
                max_log_lines=int(_limit("max_log_lines", max_log_lines)),
                max_log_chars=int(_limit("max_log_chars", max_log_chars)),
                engine=profile.engine,
                check=check,
            ),
            providers=providers,
            unavailable_servers=unavailable,
            inputs=encoded,
        )

    @cached_property
    def _mcp_configurations(self) -> McpConfigurations:
        from hutch.protocols.toolscript.providers import McpConfigurations
        from hutch.settings import load_settings

        return McpConfigurations(load_settings())

    async def _execute(self, execution: Execution, run: RunHandle) -> Result:
        if run.listeners:
            run.emit(RunQueued())
        try:
            result = await self._run_with_retry(execution, run)
        except BaseException as error:
            run.fail(error.code if isinstance(error, HutchError) else "cancelled")
            raise
        result = with_unavailable_servers(result, execution.unavailable_servers)
        run.end(result)
        return result

    async def _run_with_retry(self, execution: Execution, run: RunHandle) -> Result:
        session, result = await self._attempt(execution, run)
        if session.lost and not session.call_count and execution.limits.session is None:
            # Retry, because the connection was dead or the server stopped, and no tool was called yet. Do not
            # retry a turn of a session, which may have changed the session.
            with contextlib.suppress(SandboxUnavailable):
                session, result = await self._attempt(execution, run)
        if result.error is not None and result.error.retry_after is not None and not session.started:
            if result.error.name == "QuotaExceeded":
                return refused_result(result.error.message, result.error.retry_after, result.run_id)
            message = result.error.message.removesuffix(f" Try again in {result.error.retry_after:g} s.")
            raise Busy(f"The server is busy: {message}", retry_after=result.error.retry_after)
        return result

    def as_tool(
        self,
        tools: Tools = None,
        *,
        name: str = "run_code",
        max_chars: int = 20_000,
        **options: Unpack[RemoteOptions],
    ) -> Callable[[str], Awaitable[str]]:
        """Returns a function that an agent framework can offer to a model; see `Hutch.as_tool`."""
        from hutch.api.agent_tool import async_tool
        from hutch.api.options import providers_of

        providers = providers_of(tools)
        return async_tool(partial(self.run, tools=providers, **options), providers, name, max_chars)

    async def close(self) -> None:
        """Cancels running executions and closes the connection."""
        self._closed = True
        multiplexer, channel, reader = self._multiplexer, self._channel, self._reader
        self._multiplexer = self._channel = self._reader = None
        if "_mcp_configurations" in self.__dict__:
            await self._mcp_configurations.close()
        if multiplexer is None or channel is None or reader is None:
            return
        for session in list(multiplexer.sessions.values()):
            if isinstance(session, Session):
                session.cancel()
        multiplexer.close()
        await channel.finished()
        reader.cancel()
        await asyncio.wait({reader})

    async def _attempt(self, execution: Execution, run: RunHandle) -> tuple[Session, Result]:
        multiplexer = await self._connected()
        session = run.session = multiplexer.open(
            new_run_id(),
            execution.code,
            execution.limits,
            execution.providers,
            run.report_started,
            inputs=execution.inputs,
            listeners=run.listeners,
            trace=calling_span(),
        )
        try:
            return session, await session.wait()
        except asyncio.CancelledError:
            session.cancel()
            raise
        finally:
            multiplexer.forget(session)

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

        headers = {EXTENSIONS_HEADER: SESSIONS_EXTENSION}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        try:
            socket = await connect(
                self._url, additional_headers=headers, max_size=MAX_MESSAGE_BYTES, compression=None
            )
        except InvalidStatus as error:
            raise SandboxUnavailable(f"{self._url} {_explain_status(error.response.status_code)}") from None
        except (OSError, WebSocketException, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SandboxUnavailable(
                f"{self._url} cannot be reached: {reason}.", remedy="Is `hutch serve` running there?"
            ) from None
        extensions = socket.response.headers.get_all(EXTENSIONS_HEADER) if socket.response else []
        self._has_sessions = SESSIONS_EXTENSION in extensions
        self._channel = _channel(socket)
        self._reader = asyncio.get_running_loop().create_task(_read(socket, self._channel))
        return Multiplexer(self._channel, full_manifests=True, trusted=True)


def connect(url: str, *, api_key: str | None = None) -> Remote:
    """Returns a client for a Hutch server. Its `run` is like `Hutch.run`: code runs on the server, tools run
    locally.

    ```python
    async with hutch.connect("ws://127.0.0.1:4111/execbox") as h:
        r = await h.run("return await tools.add({a: 1, b: 2})", tools=[add])
    ```
    """
    return Remote(url, api_key=api_key)


@dataclass
class _RemoteSessions:
    """The sessions of a server, with the same methods as `hutch.kernel.sessions.sessions.Sessions`. The
    server determines the owner and the protocol.
    """

    remote: Remote

    async def run(self, session_id: str, execution: Execution, run: RunHandle) -> Result:
        return await self.remote.run_session_request(SessionRequest(session_id), execution, run)

    async def variables(self, session_id: str, owner: str, protocol: str) -> list[Variable]:
        from hutch.kernel.sessions.sessions import Variable

        return msgspec.convert(await self._manage(SessionRequest(session_id, "variables")), list[Variable])

    async def rollback(self, session_id: str, owner: str, turn: int) -> None:
        await self._manage(SessionRequest(session_id, "rollback", turn=turn))

    async def fork(self, session_id: str, owner: str, copy_id: str) -> None:
        await self._manage(SessionRequest(session_id, "fork", copy=copy_id))

    async def get(self, session_id: str, owner: str) -> SessionInfo:
        from hutch.kernel.sessions.sessions import SessionInfo

        return msgspec.convert(await self._manage(SessionRequest(session_id, "info")), SessionInfo)

    async def list(self) -> list[SessionInfo]:
        from hutch.kernel.sessions.sessions import SessionInfo

        return msgspec.convert(await self._manage(SessionRequest(action="list")), list[SessionInfo])

    async def store_now(self, session_id: str, owner: str) -> None:
        await self._manage(SessionRequest(session_id, "store"))

    async def delete(self, session_id: str, owner: str) -> None:
        await self._manage(SessionRequest(session_id, "delete"))

    async def _manage(self, request: SessionRequest) -> Any:
        execution = Execution(code="", profile=profile_for("quickjs"), limits=_DEFAULT_LIMITS)
        result = await self.remote.run_session_request(request, execution, RunHandle())
        return result.raise_for_error().result


def _limit(name: str, value: float | None) -> float:
    default: float = getattr(_DEFAULT_LIMITS, name)
    return default if value is None else check_limit(name, value)


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


def _check_size(code: str, providers: Sequence[Provider], inputs: bytes | None) -> None:
    """Raises InvalidExecution if the `execute` message would be too long. Such a message would make the
    server close the connection, which ends all other executions too.
    """
    maximum = MAX_MESSAGE_BYTES - OVERHEAD_BYTES
    others = sum(len(provider.manifest_json(full=True)) for provider in providers) + len(inputs or b"")
    if len(code) * 6 + others > maximum and (size := len(encode_value(code)) + others) > maximum:
        raise InvalidExecution(
            "code", f"has {size} bytes of JSON with its tools and inputs; the limit is {maximum}"
        )


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
