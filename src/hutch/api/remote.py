"""Client for a remote Hutch server. Code runs on the server, tools run in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from hutch.api.remote_connection import MAX_MESSAGE_BYTES, RemoteConnection
from hutch.errors import (
    Busy,
    HutchError,
    InvalidExecution,
    ResumeError,
    SandboxUnavailable,
    SessionError,
)
from hutch.kernel.error_hints import with_unavailable_servers
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import check_limit
from hutch.sandbox.runner.profile import profile_for
from hutch.session.channels.websocket import SESSIONS_EXTENSION
from hutch.session.events.live_run import Run
from hutch.session.events.log_relay import relay_logs
from hutch.session.extensions.client_session import MAX_FILE_BYTES, MAX_FILES
from hutch.session.extensions.messages import ResumeRequest
from hutch.session.files.model import FileLimits, input_files
from hutch.session.host import Session
from hutch.session.inputs import encode_inputs
from hutch.session.json_value import encode_value
from hutch.session.limits import Limits
from hutch.session.messages import SessionRequest
from hutch.session.run import Result, RunHandle, RunQueued, refused_result
from hutch.session.suspension import Answer, answer_of, answers_of
from hutch.session.tools.provider import Provider, check_providers

if TYPE_CHECKING:
    from hutch.api.options import (
        Engine,
        Files,
        McpConfig,
        RemoteOptions,
        RemoteStartOptions,
        Tools,
        TurnOptions,
    )
    from hutch.api.stateful_session import Session as StatefulSession
    from hutch.kernel.sessions.sessions import SessionInfo, Variable
    from hutch.protocols.toolscript.providers import McpConfigurations

# Maximum size of the code, the tools and the inputs of an `execute` message. The rest has at most 4096 bytes.
_MAX_EXECUTE_BYTES = MAX_MESSAGE_BYTES - 4096
_DEFAULT_LIMITS = Limits()
# Upper bounds; the server checks its own limits.
_FILE_LIMITS = FileLimits(MAX_FILES, MAX_FILE_BYTES)


class Remote:
    """Execbox client with the API of `hutch.Hutch`. Executions may run concurrently.

    Connects on first use, and reconnects if the connection was lost.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self._connection = RemoteConnection(url, api_key)

    async def __aenter__(self) -> Self:
        await self._connection.open()
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
        files: Files | None = None,
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
            files=files,
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
        execution = await self._execution(code, **options)
        # The id is empty, because the server chooses it.
        return Run(partial(self._execute, execution), RunHandle(id=""), self._seal)

    async def resume(
        self,
        run: str | bytes,
        results: Mapping[str, Any] | None = None,
        *,
        errors: Mapping[str, str] | None = None,
        tools: Tools = None,
    ) -> Run:
        """Continues a suspended run of this user on the server; see `Hutch.resume`. The run may have been
        started over another connection, or before a restart of the server. It must have been started by
        `hutch.connect`.

        Raises ResumeError, InvalidTool and InvalidExecution, SandboxUnavailable if the server cannot be
        reached, and HutchError if the server does not support suspended runs.
        """
        from hutch.api.options import providers_of

        answers = await answers_of(results, errors)
        providers = providers_of(tools)
        check_providers(providers)
        sealed = {"checkpoint": run} if isinstance(run, bytes) else None
        execution = _resuming(answers, providers, sealed)
        request = ResumeRequest("" if isinstance(run, bytes) else run)
        handle = RunHandle(id=request.run)
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        continued = Run(partial(self._execute_resumed, execution, request, resumed), handle, self._seal)
        ended = asyncio.ensure_future(continued.result())
        try:
            waiting: set[asyncio.Future[Any]] = {resumed, ended}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not resumed.done():
                await ended
        except asyncio.CancelledError:
            continued.cancel()
            raise
        finally:
            ended.cancel()
        return continued

    async def resolve(self, token: str, value: Any = None, *, error: str | None = None) -> str:
        """Delivers the result of a call of this user's runs whose tool returned `Deferred(token)`, or its
        error; see `Hutch.resolve`.
        """
        if error is None:
            answer = await answer_of(value, "value")
        else:
            answer = Answer(code="tool_error", message=error)
        request = ResumeRequest(action="resolve", token=token)
        result = await self._manage_run(_resuming({"call": answer}), request)
        return str(result.result)

    async def _seal(self, run_id: str) -> bytes:
        request = ResumeRequest(run_id, "seal")
        result = await self._manage_run(_resuming({}), request)
        if len(result.files) != 1:
            raise SandboxUnavailable(f"{self._connection.url} did not return the sealed run.")
        return result.files[0].data

    async def _manage_run(self, execution: Execution, request: ResumeRequest) -> Result:
        """Performs an action on a suspended run. Raises HutchError."""
        _, result = await self._connection.execute(execution, RunHandle(), request)
        if result.error is not None:
            raise _resume_error(result)
        return result

    async def _execute_resumed(
        self, execution: Execution, request: ResumeRequest, resumed: asyncio.Future[None], run: RunHandle
    ) -> Result:
        def on_resumed() -> None:
            assert run.session is not None
            run.id = run.session.run_id
            resumed.set_result(None)

        async def attempt() -> Result:
            # Never repeated, because the results of calls may have been delivered.
            session, result = await self._connection.execute(execution, run, request, on_resumed)
            if not resumed.done():
                raise _resume_error(result)
            return _not_refused(session, result)

        return await self._report_end(attempt(), run)

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
        await self._connection.require(SESSIONS_EXTENSION, "sessions")
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
        files: Files | None = None,
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
            files=None if files is None else input_files(files, _FILE_LIMITS),
        )

    @cached_property
    def _mcp_configurations(self) -> McpConfigurations:
        from hutch.protocols.toolscript.providers import McpConfigurations
        from hutch.settings import load_settings

        return McpConfigurations(load_settings())

    async def _execute(self, execution: Execution, run: RunHandle) -> Result:
        return await self._report_end(self._run_with_retry(execution, run), run)

    async def _report_end(self, running: Awaitable[Result], run: RunHandle) -> Result:
        if run.listeners:
            run.emit(RunQueued())
        try:
            result = await running
        except BaseException as error:
            run.fail(error.code if isinstance(error, HutchError) else "cancelled")
            raise
        run.end(result)
        return result

    async def _run_with_retry(self, execution: Execution, run: RunHandle) -> Result:
        session, result = await self._connection.execute(execution, run)
        if session.lost and not session.call_count and execution.limits.session is None:
            # Retry, because the connection was dead or the server stopped, and no tool was called yet. Do not
            # retry a turn of a session, which may have changed the session.
            with contextlib.suppress(SandboxUnavailable):
                session, result = await self._connection.execute(execution, run)
        return with_unavailable_servers(_not_refused(session, result), execution.unavailable_servers)

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
        await self._connection.close()
        if "_mcp_configurations" in self.__dict__:
            await self._mcp_configurations.close()


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


def _resuming(
    answers: Mapping[str, Answer],
    providers: Sequence[Provider] = (),
    files: Mapping[str, bytes] | None = None,
) -> Execution:
    """Returns the `execute` that delivers results and continues a run. Raises InvalidExecution."""
    results = [
        encode_value(call_id) + b":" + answer.result_json
        for call_id, answer in answers.items()
        if answer.result_json is not None
    ]
    errors = {call_id: answer.message for call_id, answer in answers.items() if answer.result_json is None}
    inputs = b'{"errors":' + encode_value(errors) + b',"results":{' + b",".join(results) + b"}}"
    size = len(inputs) + sum(len(provider.manifest_with_schemas()) for provider in providers)
    if size > _MAX_EXECUTE_BYTES:
        raise InvalidExecution(
            "results", f"have {size} bytes of JSON with the tools; the limit is {_MAX_EXECUTE_BYTES}"
        )
    return Execution(
        code="",
        profile=profile_for("quickjs"),
        limits=_DEFAULT_LIMITS,
        providers=providers,
        inputs=inputs if answers else None,
        files=None if files is None else input_files(files, _FILE_LIMITS),
    )


def _not_refused(session: Session, result: Result) -> Result:
    """Raises Busy if the server was too busy to start the execution."""
    error = result.error
    if error is None or error.retry_after is None or session.started:
        return result
    if error.name == "QuotaExceeded":
        return refused_result(error.message, error.retry_after, result.run_id)
    message = error.message.removesuffix(f" Try again in {error.retry_after:g} s.")
    raise Busy(f"The server is busy: {message}", retry_after=error.retry_after)


def _resume_error(result: Result) -> HutchError:
    """Returns the exception for a request about a suspended run that was refused."""
    error = result.error
    if error is None:
        return SandboxUnavailable("The server ended the request without continuing the run.")
    if error.retry_after is not None:
        message = error.message.removesuffix(f" Try again in {error.retry_after:g} s.")
        return Busy(f"The server is busy: {message}", retry_after=error.retry_after)
    if error.name in ResumeError.CODES:
        return ResumeError(error.name, error.message)
    field, _, detail = error.message.partition(": ")
    if error.code == "validation_error" and detail:
        return InvalidExecution(field, detail)
    return SandboxUnavailable(f"The run was not continued: {error.message}")


def _limit(name: str, value: float | None) -> float:
    default: float = getattr(_DEFAULT_LIMITS, name)
    return default if value is None else check_limit(name, value)


def _check_size(code: str, providers: Sequence[Provider], inputs: bytes | None) -> None:
    """Raises InvalidExecution if the `execute` message would be too long. Such a message would make the
    server close the connection, which ends all other executions too.
    """
    maximum = _MAX_EXECUTE_BYTES
    others = sum(len(provider.manifest_json(full=True)) for provider in providers) + len(inputs or b"")
    if len(code) * 6 + others > maximum and (size := len(encode_value(code)) + others) > maximum:
        raise InvalidExecution(
            "code", f"has {size} bytes of JSON with its tools and inputs; the limit is {maximum}"
        )
