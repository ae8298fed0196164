"""`POST /run`: runs code over plain HTTP. On request, sends the events of the run as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from hutch.errors import ExecutionError, InvalidExecution, SessionError
from hutch.http.auth import AccessControl
from hutch.http.endpoint import HttpProtocol, RequestContext
from hutch.http.errors import ERROR_KINDS, ApiError
from hutch.http.lifecycle import cancel_on_disconnect
from hutch.http.middleware.run_headers import RUN_ID_HEADER
from hutch.http.requests import JsonBodyReader
from hutch.http.run_results import result_json
from hutch.http.sse import EventBuffer, encode_event, event_stream
from hutch.kernel.content import RecordLevels
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import Kernel
from hutch.problems import Problem, ProblemList, describe_value, similar_field
from hutch.sandbox.runner.profile import profile_for
from hutch.session.files.model import FileLimits, InputFiles, input_files
from hutch.session.files.transfer import decode_files
from hutch.session.host import TIMED_OUT
from hutch.session.inputs import encode_decoded_inputs
from hutch.session.json_value import encode_value
from hutch.session.limits import Limits
from hutch.session.run import SUSPENDED, Result, RunEvent, RunHandle, event_json
from hutch.session.runner import PendingBytes
from hutch.session.tools.provider import Provider
from hutch.settings import Settings
from hutch.settings.model import RecordLevel
from hutch.text import cut

PROTOCOL = "execbox"
# Scope that users need in every protocol to call tools of the operator's MCP servers.
SERVERS_SCOPE = "toolscript"
PATH = "/run"
MAX_LABEL_CHARS = 200

ProvideTools = Callable[[], Awaitable[tuple[Sequence[Provider], Mapping[str, str]]]]
"""Returns the tools of the MCP servers, and a mapping with the names of the servers that are not connected.
The values of the mapping are empty, because only the operator may see the reasons.
"""
Run = Callable[[Execution, RunHandle], Awaitable[Result]]
"""Runs an execution to its end."""


class RunLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    timeout_ms: float | None = None
    memory_limit_bytes: float | None = None
    max_log_lines: float | None = None
    max_log_chars: float | None = None


class RunBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    inputs: dict[str, Any] | None = None
    files: dict[str, str] | None = None
    """Contents in Base64, by name."""
    engine: Literal["quickjs", "deno"] | None = None
    limits: RunLimits = RunLimits()
    check: bool = False
    label: Annotated[str, msgspec.Meta(max_length=MAX_LABEL_CHARS)] | None = None
    record: RecordLevel | None = None


class CodeCaller(Protocol):
    """The user whose code is executed: the sender of the current request, or of a request that was queued."""

    @property
    def owner(self) -> str: ...

    def may(self, scope: str) -> bool: ...


class RunHandler:
    def __init__(
        self,
        kernel: Kernel,
        access: AccessControl,
        pending: PendingBytes,
        mcp_tools: ProvideTools,
        suspended_runs: SuspendedRuns,
    ) -> None:
        settings = kernel.settings
        self._kernel = kernel
        self._access = access
        self._pending = pending
        self._mcp_tools = mcp_tools
        self._suspended_runs = suspended_runs
        self._levels = RecordLevels(settings.record, settings.record_protocols, by_key=settings.record_keys)
        self._body = JsonBodyReader(settings.max_body_bytes, settings.request_seconds)
        self._no_files = InputFiles([], _file_limits(settings))
        self.protocol = HttpProtocol(
            name=PROTOCOL,
            access=access,
            logger=logging.getLogger("hutch.execbox"),
            render=_render,
            convert=_session_error,
        )

    async def run(self, context: RequestContext) -> ASGIApp:
        return await self.respond(context, await self.read_body(context), self._kernel.run)

    async def read_body(self, context: RequestContext) -> RunBody:
        return parse_body(await self._body.read_object(context.request))

    async def respond(self, context: RequestContext, body: RunBody, execute: Run) -> ASGIApp:
        """Runs code with `execute`. Responds with the result or, if the request asks for them, with the
        events of the run.
        """
        run = RunHandle(record_level=self.record_level(body.record))
        headers = {RUN_ID_HEADER: run.id}
        if _wants_events(context.request):
            # Build the execution before the stream begins, so that an error gets its own HTTP status.
            execution = await self.execution(context.caller, body)
            stream = event_stream(self._events(execution, run, execute))
            stream.headers.update(headers)
            return stream
        result = await cancel_on_disconnect(
            context.request.receive, self._execute(context, body, run, execute), self._access
        )
        return Response(await result_json(result), headers=headers, media_type="application/json")

    def record_level(self, requested: RecordLevel | None) -> RecordLevel | None:
        """Returns the record level that a request asks for, or None to use the operator's level. If the
        operator's level is `metadata`, requests cannot raise it.
        """
        return None if self._levels.of(PROTOCOL) == "metadata" else requested

    async def _execute(self, context: RequestContext, body: RunBody, run: RunHandle, execute: Run) -> Result:
        return await self._run(await self.execution(context.caller, body), run, execute)

    async def _run(self, execution: Execution, run: RunHandle, execute: Run) -> Result:
        size = len(execution.code) + len(execution.inputs or b"")
        size += 0 if execution.files is None else execution.files.size
        self._pending.reserve(execution.owner, size)
        try:
            result = await execute(execution, run)
        finally:
            self._pending.release(execution.owner, size)
        if result.error is not None and result.error.code == SUSPENDED:
            # The run waits for approvals. It stays suspended if the client disconnects or the server stops.
            end = await self._suspended_runs.ends.wait(
                run.id, execution.owner, run.listeners, lambda: self._access.is_draining
            )
            result = result if end is None else end
        return self._with_limit_hint(result, execution.limits)

    def _with_limit_hint(self, result: Result, limits: Limits) -> Result:
        """Names the field of the request that raises the limit that the run has reached."""
        error, settings = result.error, self._kernel.settings
        if error is None:
            return result
        if error.code == "timeout" and error.message.startswith(f"{TIMED_OUT.message} after"):
            field, limit, maximum = "timeout_ms", limits.timeout_ms, settings.max_timeout_ms
        elif error.code == "memory_limit":
            field, limit = "memory_limit_bytes", limits.memory_limit_bytes
            maximum = settings.max_memory_limit_bytes
        else:
            return result
        if limit >= maximum:
            return result
        message = f"{error.message}; limits.{field} allows up to {int(maximum)}"
        explained = ExecutionError(error.code, message, error.name, error.line, error.column, error.stack)
        return msgspec.structs.replace(result, error=explained)

    async def check(self, body: RunBody) -> None:
        """Checks the limits and the files, before a run starts. Raises InvalidExecution."""
        self._limits(body.limits)
        if body.files is not None:
            await self._files(body.files)

    async def execution(self, caller: CodeCaller, body: RunBody) -> Execution:
        """Raises InvalidExecution."""
        providers, unavailable = await self._mcp_tools() if caller.may(SERVERS_SCOPE) else ((), {})
        return Execution(
            code=body.code,
            profile=profile_for(body.engine or "quickjs"),
            limits=self._limits(body.limits),
            providers=providers,
            unavailable_servers=unavailable,
            inputs=None if body.inputs is None else encode_decoded_inputs(body.inputs, providers),
            files=self._no_files if body.files is None else await self._files(body.files),
            check=body.check,
            owner=caller.owner,
            protocol=PROTOCOL,
            label=body.label,
            checkpoint_after_ms=self._kernel.settings.checkpoint_after_ms,
            is_durable=True,
        )

    async def _files(self, files: Mapping[str, str]) -> InputFiles:
        return input_files(await decode_files(files), self._no_files.limits)

    def _limits(self, requested: RunLimits) -> Limits:
        try:
            return self._kernel.limits(msgspec.structs.asdict(requested))
        except InvalidExecution as error:
            raise InvalidExecution(f"limits.{error.field}", error.detail) from None

    async def _events(self, execution: Execution, run: RunHandle, execute: Run) -> AsyncIterator[bytes]:
        """Yields the events of a run. The last event is the result, or the error that kept the run from
        starting.
        """
        buffer = EventBuffer()

        def add(event: RunEvent) -> None:
            name: Any = event.__struct_config__.tag
            # Send inputs and results of tool calls only if the record level of the run allows storing them.
            shows_values = run.timeline is not None and run.timeline.keeps_values
            buffer.add(encode_event(name, event_json(event, run.id, values=shows_values)))

        run.listeners.append(add)
        ending = self._run(execution, run, execute)
        running = asyncio.create_task(cancel_on_disconnect(None, ending, self._access))
        running.add_done_callback(lambda _: buffer.end())
        try:
            while (chunk := await buffer.next()) is not None:
                yield chunk
            try:
                last = encode_event("result", await result_json(await running))
            except Exception as error:
                last = encode_event("error", _error_json(self.protocol.to_api_error(error)))
            yield last
        finally:
            running.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait((running,))


def parse_body(body: dict[str, Any]) -> RunBody:
    """Raises ApiError with all problems."""
    problems = ProblemList(_invalid_request)
    problems.extend(_field_problems(RunBody, body, ""))
    if isinstance(limits := body.get("limits"), dict):
        problems.extend(_field_problems(RunLimits, limits, "limits."))
    problems.raise_if_any()
    try:
        return msgspec.convert(body, RunBody)
    except msgspec.ValidationError as error:
        raise ApiError("invalid_request", str(error)) from None


_LIMIT_FIELDS = [f"limits.{field.name}" for field in msgspec.structs.fields(RunLimits)]


def _field_problems(kind: type[msgspec.Struct], values: dict[str, Any], path: str) -> Iterator[Problem]:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name in values:
        if name not in fields:
            similar = similar_field(name, fields if path else [*fields, *_LIMIT_FIELDS])
            hint = f"did you mean {similar}?" if similar else f"expected one of {', '.join(fields)}"
            yield Problem(f"{path}{cut(name, MAX_LABEL_CHARS)}", f"unknown field; {hint}")
    for name, field in fields.items():
        if field.required and name not in values:
            yield Problem(f"{path}{name}", f"expected {_EXPECTED[name]}, got nothing")
        elif name in values and name in _EXPECTED:
            try:
                msgspec.convert(values[name], field.type)
            except msgspec.ValidationError:
                yield Problem(
                    f"{path}{name}", f"expected {_EXPECTED[name]}, got {describe_value(values[name])}"
                )


_EXPECTED = {
    "code": "a string",
    "inputs": "an object",
    "files": "an object with contents in Base64",
    "engine": "quickjs or deno",
    "check": "true or false",
    "record": "metadata, errors or full",
    "label": f"a string of at most {MAX_LABEL_CHARS} characters",
    **dict.fromkeys(RunLimits.__struct_fields__, "a number"),
}


def _invalid_request(problems: list[Problem]) -> ApiError:
    return ApiError("invalid_request", "; ".join(map(str, problems)))


def _file_limits(settings: Settings) -> FileLimits:
    """Reduces the limits so that the output files, encoded as Base64, are not larger than a request body."""
    max_bytes = settings.max_body_bytes * 3 // 4
    if max_bytes < settings.max_file_bytes:
        return FileLimits(settings.max_files, max_bytes, "max_body_bytes")
    return FileLimits(settings.max_files, settings.max_file_bytes)


def _wants_events(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "").lower()


def _session_error(error: Exception) -> ApiError | None:
    if not isinstance(error, SessionError):
        return None
    is_missing = error.code in ("session_not_found", "session_expired", "turn_not_found")
    return ApiError("not_found" if is_missing else "conflict", str(error), reason=error.code)


def _error_json(error: ApiError) -> bytes:
    return encode_value(
        {
            "success": False,
            "error": {"code": ERROR_KINDS[error.kind].code, "message": error.message, **error.extra},
        }
    )


def _render(context: RequestContext, error: ApiError) -> Response:
    status = ERROR_KINDS[error.kind].status
    return Response(_error_json(error), status, error.headers, "application/json")
