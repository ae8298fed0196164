"""Runs code written by a model, as a toolscript or as JavaScript, and assigns tool calls to runs."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from mcp.types import CallToolResult

from hutch.errors import HutchError, InvalidExecution
from hutch.kernel.error_hints import code_warnings
from hutch.kernel.execution import Execution
from hutch.protocols.mcp.arguments import RunCode
from hutch.protocols.mcp.interfaces import McpServices
from hutch.protocols.mcp.media import MAX_MEDIA, file_blocks, take_media
from hutch.protocols.mcp.questions.held_calls import Questions
from hutch.protocols.mcp.results import (
    MAX_CHARS,
    MAX_LISTED_CALLS,
    MAX_LISTED_PROBLEMS,
    CapturedOutput,
    KeptValue,
    ReportedCall,
    ReportedProblem,
    RunFailure,
    RunReport,
    cut_report,
    report_result,
)
from hutch.protocols.toolscript.checker.checker import Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript, ScriptProblem
from hutch.protocols.toolscript.execute import TIMEOUT_EXIT_CODE, ScriptRequest, ScriptResult
from hutch.protocols.toolscript.gateway.gateway import CompletedCall
from hutch.protocols.toolscript.providers import tool_providers, unavailable_servers
from hutch.sandbox.runner.profile import profile_for
from hutch.session.files.model import File
from hutch.session.json_value import NotJsonSafe, well_formed
from hutch.session.large_json import decode_large_value
from hutch.session.run import SUSPENDED, Result, RunHandle, ScriptOutput, new_run_id
from hutch.session.tools.names import letters
from hutch.settings import Settings

logger = logging.getLogger("hutch.mcp")

Output: TypeAlias = dict[str, CapturedOutput]
"""Output of a program, by stream: `stdout` and `stderr`."""


_MISSING_SERVER = re.compile(r"Property '([\w$]+)' does not exist on type '(Tools|\{\})'")
# Line that the script runner writes before it ends a failed script.
_UNCAUGHT = re.compile(r"^error: Uncaught ", re.M)


class CompletedCalls:
    """The number of calls of a run, and the first MAX_LISTED_CALLS of them."""

    def __init__(self) -> None:
        self.count = 0
        self.records: list[CompletedCall] = []

    def add(self, call: CompletedCall) -> None:
        self.count += 1
        if len(self.records) < MAX_LISTED_CALLS:
            self.records.append(call)


class ClientRun:
    """A run in progress, with its client, owner and tool calls."""

    def __init__(
        self,
        client: Any,
        on_call: Callable[[CompletedCall, int], None],
        owner: str | None = None,
        *,
        can_ask: bool = False,
    ) -> None:
        """`on_call` gets each tool call and the number of calls so far. `owner` defaults to the server's
        owner. With `can_ask`, the client's user can be asked while the run waits in memory.
        """
        self.client = client
        self.owner = owner
        self.can_ask = can_ask
        self.name: str | None = None
        """Name of the client's user, for the records of decisions."""
        self.questions: Questions | None = None
        """Questions that the client gets when its request returns. None if the client cannot be asked in this
        way.
        """
        self.calls = CompletedCalls()
        self._on_call = on_call

    def continue_with(self, request: ClientRun) -> None:
        """Replaces the client's request, which has returned, by the client's next request."""
        self.client = request.client
        self._on_call = request._on_call
        request.calls = self.calls

    def add_call(self, call: CompletedCall) -> None:
        self.calls.add(call)
        self._on_call(call, self.calls.count)


class SuspendedRun(NamedTuple):
    """A stored run that waits for approvals."""

    run_id: str


class CodeRunner:
    """Runs code and keeps track of the client of each run."""

    def __init__(self, hutch: McpServices, owner: str) -> None:
        self._hutch = hutch
        self._owner = owner
        self._runs_by_id: dict[str, ClientRun] = {}
        hutch.gateway.on_call.append(self._on_call_finished)

    def close(self) -> None:
        self._hutch.gateway.on_call.remove(self._on_call_finished)

    async def run(self, arguments: RunCode, run: ClientRun) -> CallToolResult | SuspendedRun:
        """Runs the code until it ends or is suspended, or the task is cancelled. Raises HutchError if the
        code cannot be started.
        """
        files: Sequence[File] = ()
        json: bytes | None = None
        output: Output = {"stdout": CapturedOutput(), "stderr": CapturedOutput()}
        try:
            if arguments.language == "javascript" or arguments.session is not None:
                result = await self._javascript(arguments, run)
                if result.error is not None and result.error.code == SUSPENDED:
                    return SuspendedRun(result.run_id)
                files, json = result.files, result.result_json
                report = _javascript_report(result, _common_fields(run, result.duration_ms))
            else:
                script = await self._toolscript(arguments, run, output)
                if isinstance(script, SuspendedRun):
                    return script
                report, json = script
        except InvalidScript as error:
            gateway = self._hutch.gateway
            explained = _with_servers(error, unavailable_servers(gateway))
            report = RunReport(ok=False, error=_invalid_script(explained), exit_code=1)
        report = _with_limit_hint(report, arguments, self._hutch.settings)
        report = await self._keep_large(report, json, run.owner)
        return _tool_result(report, output, files, structured=arguments.format == "json")

    async def continued_result(
        self, result: Result, owner: str | None, *, structured: bool
    ) -> CallToolResult:
        """Returns the tool result of a run that was suspended."""
        output: Output = {}
        if result.script is None:
            report = _continued_report(result)
        else:
            output = _captured(result.script)
            report = await _continued_script_report(result, result.script, output["stderr"])
        report = await self._keep_large(report, result.result_json, owner)
        return _tool_result(report, output, result.files, structured=structured)

    async def _keep_large(self, report: RunReport, json: bytes | None, owner: str | None) -> RunReport:
        """Keeps a result that is too large for the report, so that later code can use it."""
        if json is None or len(json) <= MAX_CHARS:
            return report
        try:
            name = await self._hutch.values.add(owner or self._owner, json)
        except HutchError as error:
            logger.warning("a large result could not be kept: %s", error)
            return report
        return msgspec.structs.replace(report, value=KeptValue(name, len(json)))

    def find(self, run_id: str | None) -> ClientRun | None:
        return self._runs_by_id.get(run_id or "")

    @contextlib.contextmanager
    def registered(self, run_id: str, run: ClientRun) -> Iterator[None]:
        self._runs_by_id[run_id] = run
        try:
            yield
        finally:
            # Keep the entry if another request of the client has registered the run again.
            if self._runs_by_id.get(run_id) is run:
                del self._runs_by_id[run_id]

    def _on_call_finished(self, call: CompletedCall) -> None:
        run = self.find(call.run)
        if run is not None:
            run.add_call(call)

    # --- toolscripts ---

    async def _toolscript(
        self, arguments: RunCode, run: ClientRun, output: Output
    ) -> tuple[RunReport, bytes | None] | SuspendedRun:
        """Returns the report and the JSON text of the result, or the run if it waits for approvals."""
        if arguments.values:
            raise InvalidExecution("values", 'expected language "javascript", whose code can use values')
        request = ScriptRequest(
            script=Script(arguments.code),
            timeout_ms=_timeout_ms(arguments, self._hutch.settings),
            check=arguments.check,
            strict=arguments.strict,
            owner=run.owner or self._owner,
            run_id=(run_id := new_run_id()),
            on_output=lambda stream, data: output[stream].add(data),
        )
        durable = self._hutch.durable_scripts
        with self.registered(run_id, run):
            if durable is None or run.can_ask or not durable.is_needed:
                result = await self._hutch.scripts.run(request, self._hutch.script_gateway)
            else:
                ended = await durable.run(request)
                if ended is None:
                    return SuspendedRun(run_id)
                result = ended
        for stream in ("stdout", "stderr"):
            output[stream].add(b"", final=True)
        json = None if result.value_json is None else well_formed(result.value_json).encode()
        fields = _common_fields(run, result.duration_ms)
        return await _script_report(result, fields, output["stderr"]), json

    # --- JavaScript ---

    async def _javascript(self, arguments: RunCode, run: ClientRun) -> Result:
        kernel = self._hutch.kernel
        gateway = self._hutch.gateway
        timeout_ms = _timeout_ms(arguments, self._hutch.settings)
        execution = Execution(
            code=arguments.code,
            profile=profile_for("quickjs"),
            limits=kernel.limits({"timeout_ms": timeout_ms}),
            providers=tool_providers(await gateway.catalog(), gateway),
            unavailable_servers=dict.fromkeys(unavailable_servers(gateway), ""),
            files=kernel.no_files,
            inputs=await self._hutch.values.inputs(run.owner or self._owner, arguments.values),
            owner=run.owner or self._owner,
            protocol="mcp",
            label="run_code",
            is_storable=arguments.session is None,
            asks_client=run.can_ask,
        )
        handle = RunHandle()
        with self.registered(handle.id, run):
            if arguments.session is None:
                return await kernel.run(execution, handle)
            # Remove the label, so that the session id becomes the label of the turn.
            execution = msgspec.structs.replace(execution, label=None)
            return await self._hutch.sessions.run(arguments.session, execution, handle)


def _timeout_ms(arguments: RunCode, settings: Settings) -> float:
    if arguments.timeout_seconds is None:
        return settings.script_timeout_ms
    maximum = settings.max_timeout_ms / 1000
    if arguments.timeout_seconds > maximum:
        raise InvalidExecution(
            "timeout_seconds", f"is {arguments.timeout_seconds:g}; the maximum is {maximum:g}"
        )
    return max(1.0, arguments.timeout_seconds * 1000)


def _with_limit_hint(report: RunReport, arguments: RunCode, settings: Settings) -> RunReport:
    """Names the argument that allows more time if the run has reached its time limit."""
    error = report.error
    if error is None or error.code != "timeout":
        return report
    if _timeout_ms(arguments, settings) >= settings.max_timeout_ms:
        return report
    message = f"{error.message}; timeout_seconds allows up to {settings.max_timeout_ms / 1000:g}"
    return msgspec.structs.replace(report, error=msgspec.structs.replace(error, message=message))


# --- reports ---


def _common_fields(run: ClientRun, duration_ms: float) -> dict[str, Any]:
    return {
        "tool_calls": [ReportedCall.of(call) for call in run.calls.records],
        "tool_call_count": run.calls.count,
        "duration_ms": round(duration_ms, 1),
    }


async def _script_report(result: ScriptResult, fields: dict[str, Any], stderr: CapturedOutput) -> RunReport:
    try:
        value = None if result.value_json is None else await decode_large_value(result.value_json.encode())
    except (NotJsonSafe, UnicodeEncodeError):
        value = result.value_json
    error = None
    if result.exit_code != 0:
        code = "timeout" if result.exit_code == TIMEOUT_EXIT_CODE and result.message else "script_failed"
        error = RunFailure(
            message=result.message or _uncaught_error(stderr.text, result.exit_code), code=code
        )
    return RunReport(
        ok=error is None,
        result=value,
        error=error,
        exit_code=result.exit_code,
        **fields,
    )


def _uncaught_error(stderr: str, code: int) -> str:
    """Returns the last uncaught error in stderr, or a message with the exit code."""
    matches = [*_UNCAUGHT.finditer(stderr)]
    return stderr[matches[-1].start() :].strip() if matches else f"The script ended with exit code {code}"


def _invalid_script(error: InvalidScript) -> RunFailure:
    problems = [
        ReportedProblem(problem.message, problem.file, problem.line, problem.column, problem.code)
        for problem in error.problems[:MAX_LISTED_PROBLEMS]
    ]
    return RunFailure(message=error.message, code=error.code, problems=problems)


def _with_servers(error: InvalidScript, servers: Iterable[str]) -> InvalidScript:
    """Adds the reason to each problem about a server that is missing in `tools`: the server is not connected
    (`servers` contains the names of such servers), or `tools` has no servers at all.
    """
    by_letters = {letters(name): name for name in servers}

    def explained(problem: ScriptProblem) -> ScriptProblem:
        missing = _MISSING_SERVER.match(problem.message)
        name = None if missing is None else by_letters.get(letters(missing[1]))
        if missing is None or (name is None and missing[2] != "{}"):
            return problem
        reason = "tools has no servers" if name is None else f"the MCP server {name} is not connected"
        return msgspec.structs.replace(problem, message=f"{missing[0]}: {reason}.")

    return InvalidScript([explained(problem) for problem in error.problems])


def _continued_report(result: Result) -> RunReport:
    """Reports a run that was suspended."""
    return _javascript_report(result, _continued_fields(result))


async def _continued_script_report(result: Result, script: ScriptOutput, stderr: CapturedOutput) -> RunReport:
    """Reports a toolscript that was suspended."""
    if result.error is not None and result.error.code == "cancelled":
        return _javascript_report(result, _continued_fields(result))
    value = None if result.result_json is None else result.result_json.decode()
    ended = ScriptResult(exit_code=script.exit_code, value_json=value, message=script.message)
    return await _script_report(ended, _continued_fields(result), stderr)


def _captured(script: ScriptOutput) -> Output:
    output: Output = {"stdout": CapturedOutput(), "stderr": CapturedOutput()}
    for stream, text in (("stdout", script.stdout), ("stderr", script.stderr)):
        output[stream].add(text.encode(), final=True)
    return output


def _continued_fields(result: Result) -> dict[str, Any]:
    """Returns the calls and the duration of a run that was suspended."""
    calls = [
        ReportedCall(call.provider, call.tool, call.ok, round(call.duration_ms, 1))
        for call in result.calls[:MAX_LISTED_CALLS]
    ]
    return {
        "tool_calls": calls,
        "tool_call_count": len(result.calls),
        "duration_ms": round(result.duration_ms, 1),
    }


def _tool_result(
    report: RunReport, output: Output, files: Sequence[File], *, structured: bool
) -> CallToolResult:
    value, media = take_media(report.result)
    blocks, reported = file_blocks(files, MAX_MEDIA - len(media))
    report = cut_report(msgspec.structs.replace(report, result=value, files=reported), **output)
    return report_result(report, [*media, *blocks], structured=structured)


def _javascript_report(result: Result, fields: dict[str, Any]) -> RunReport:
    error = result.error
    failure = None
    if error is not None:
        position = "" if error.line is None else f" (line {error.line}, column {error.column})"
        name = f"{error.name}: " if error.name and error.name != "Error" else ""
        failure = RunFailure(
            message=f"{name}{error.message}{position}", code=error.code, line=error.line, column=error.column
        )
    return RunReport(
        ok=result.ok,
        result=result.result,
        logs=result.logs,
        error=failure,
        truncated=result.logs_truncated,
        warnings=code_warnings(result),
        **fields,
    )
