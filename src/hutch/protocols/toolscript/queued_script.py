"""Asynchronous runs of toolscripts: `POST /runs` with the kind `script`, schedules and triggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from hutch.http.errors import ApiError
from hutch.protocols.toolscript.checker.checker import SCRIPT, Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript
from hutch.protocols.toolscript.durable.durable_scripts import DurableScripts
from hutch.protocols.toolscript.durable.stored_script import Output
from hutch.protocols.toolscript.execute import (
    FAILURE_EXIT_CODE,
    ScriptGateway,
    ScriptRequest,
    ScriptRunner,
)
from hutch.queue.attempt import Attempt
from hutch.queue.models import HandlerResult, QueueCaller, RunRequest
from hutch.queue.suspended_attempt import continue_suspended, wait_suspended
from hutch.session.run import Result, ScriptOutput

PROTOCOL = "toolscript"


class ScriptBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a script. `args` are `Deno.args`."""

    code: str
    args: list[str] = []
    timeout_ms: float | None = None
    check: bool = True
    name: str | None = None


class QueuedScript:
    kind = "script"
    protocol = PROTOCOL
    is_repeatable = False
    # Assume that a script has effects from its start. Its tool calls do not pass through the session, which
    # reports the effects of other runs.
    has_hidden_effects = True

    def __init__(
        self,
        scripts: Callable[[], ScriptRunner],
        gateway: Callable[[], ScriptGateway],
        max_code_bytes: int,
        durable: Callable[[], DurableScripts | None],
    ) -> None:
        """`durable` returns the scripts that are stored while they wait for approvals. None if they wait in
        memory.
        """
        self._durable = durable
        self._scripts = scripts
        self._gateway = gateway
        self._max_code_bytes = max_code_bytes

    async def parse(self, body: dict[str, Any], caller: QueueCaller) -> RunRequest:
        try:
            parsed = msgspec.convert(body, ScriptBody)
        except msgspec.ValidationError as error:
            raise ApiError("invalid_request", f"request: {error}") from None
        if (size := len(parsed.code.encode(errors="surrogatepass"))) > self._max_code_bytes:
            raise ApiError(
                "too_large", f"request.code: has {size} bytes; the limit is {self._max_code_bytes}"
            )
        encoded = msgspec.json.encode(parsed)
        return RunRequest(kind=self.kind, protocol=self.protocol, label=parsed.name, body=encoded)

    async def run(self, attempt: Attempt) -> HandlerResult:
        durable = self._durable()
        if durable is not None and attempt.row.generation > 1:
            continued = await continue_suspended(attempt, durable.runs)
            if continued is not None:
                return _continued(attempt, continued)
            await durable.forget_calls(attempt.run_id, attempt.row.owner)
        body = msgspec.json.decode(attempt.request, type=ScriptBody)
        output = Output()
        request = ScriptRequest(
            script=Script(body.code, SCRIPT if body.name is None else f"{body.name}.ts"),
            args=tuple(body.args),
            timeout_ms=body.timeout_ms,
            check=body.check,
            owner=attempt.row.owner,
            run_id=attempt.run_id,
            on_output=output.add,
            preparation=attempt,
        )
        try:
            if durable is None or not durable.is_needed:
                result = await self._scripts().run(request, self._gateway())
            else:
                ended = await durable.run(request)
                if ended is None:
                    return _continued(attempt, await wait_suspended(attempt, durable.runs))
                result = ended
        except InvalidScript as error:
            failed = {"ok": False, "error": {"code": error.code, "message": str(error)}}
            return HandlerResult(ok=False, outcome=error.code, body=msgspec.json.encode(failed))
        recorded = "" if attempt.handle is None else attempt.handle.outcome
        value = None if result.value_json is None else result.value_json.encode()
        return _handler_result(
            attempt,
            ScriptOutput(result.exit_code, output.text("stdout"), output.text("stderr"), result.message),
            value,
            recorded,
            result.duration_ms,
        )


def _continued(attempt: Attempt, result: Result) -> HandlerResult:
    """Returns the result of a script that was suspended."""
    error = result.error
    script = result.script or ScriptOutput(FAILURE_EXIT_CODE, "", "", None if error is None else str(error))
    outcome = "" if error is None else error.code
    return _handler_result(attempt, script, result.result_json, outcome, result.duration_ms)


def _handler_result(
    attempt: Attempt, script: ScriptOutput, value: bytes | None, outcome: str, duration_ms: float
) -> HandlerResult:
    """`outcome` is the outcome of a script that has failed, if known."""
    is_ok = script.exit_code == 0
    fields: dict[str, Any] = {
        "ok": is_ok,
        "run_id": attempt.run_id,
        "exit_code": script.exit_code,
        "value": None if value is None else msgspec.Raw(value),
        "message": script.message,
        "duration_ms": duration_ms,
        "stdout": script.stdout,
        "stderr": script.stderr,
    }
    recorded = "ok" if is_ok else outcome or "script_failed"
    return HandlerResult(ok=is_ok, outcome=recorded, body=msgspec.json.encode(fields))
