"""Asynchronous runs of toolscripts: `POST /runs` with the kind `script`, schedules and triggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from hutch.http.errors import ApiError
from hutch.protocols.toolscript.checker.checker import SCRIPT, Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript
from hutch.protocols.toolscript.execute import ScriptGateway, ScriptRequest, ScriptRunner
from hutch.queue.attempt import Attempt
from hutch.queue.models import HandlerResult, QueueCaller, RunRequest

PROTOCOL = "toolscript"
MAX_OUTPUT_BYTES = 256 * 1024
"""Maximum size of each of stdout and stderr in a result. The rest is left out."""


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
        self, scripts: Callable[[], ScriptRunner], gateway: Callable[[], ScriptGateway], max_code_bytes: int
    ) -> None:
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
        body = msgspec.json.decode(attempt.request, type=ScriptBody)
        output = {"stdout": bytearray(), "stderr": bytearray()}

        def on_output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
            output[stream] += data[: MAX_OUTPUT_BYTES - len(output[stream])]

        request = ScriptRequest(
            script=Script(body.code, SCRIPT if body.name is None else f"{body.name}.ts"),
            args=tuple(body.args),
            timeout_ms=body.timeout_ms,
            check=body.check,
            owner=attempt.row.owner,
            run_id=attempt.run_id,
            on_output=on_output,
            preparation=attempt,
        )
        try:
            result = await self._scripts().run(request, self._gateway())
        except InvalidScript as error:
            failed = {"ok": False, "error": {"code": error.code, "message": str(error)}}
            return HandlerResult(ok=False, outcome=error.code, body=msgspec.json.encode(failed))
        is_ok = result.exit_code == 0
        recorded = "" if attempt.handle is None else attempt.handle.outcome
        fields: dict[str, Any] = {
            "ok": is_ok,
            "run_id": attempt.run_id,
            "exit_code": result.exit_code,
            "value": None if result.value_json is None else msgspec.Raw(result.value_json.encode()),
            "message": result.message,
            "duration_ms": result.duration_ms,
            **{name: data.decode(errors="replace") for name, data in output.items()},
        }
        outcome = "ok" if is_ok else recorded or "script_failed"
        return HandlerResult(ok=is_ok, outcome=outcome, body=msgspec.json.encode(fields))
