"""`toolscript.run`: type-checks a toolscript and runs it in a jail."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from hutch.protocols.rep.kinds.code import remaining_ms
from hutch.protocols.rep.kinds.durable.replayed_step import replayed_calls
from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed
from hutch.protocols.rep.kinds.tool_approval import approve_through_step
from hutch.protocols.toolscript.checker.checker import Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript
from hutch.protocols.toolscript.execute import ScriptRequest, ScriptResult, ScriptRunner
from hutch.session.large_json import decode_large_value

_MAX_LINE_CHARS = 8_192


class ScriptParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `toolscript.run`. Exactly one of `code` and `file` is required."""

    code: str | None = None
    file: str | None = None
    args: list[str] = []
    check: bool = True


class ScriptOutputLines:
    """Splits the output of a script into lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._partial = ""

    def add(self, data: bytes, *, final: bool = False) -> None:
        *lines, self._partial = (self._partial + self._decode(data, final)).split("\n")
        if final or len(self._partial) > _MAX_LINE_CHARS:
            lines, self._partial = [*lines, self._partial], ""
        for line in lines:
            if line:
                self._on_line(line)


async def _run(call: Call) -> Any:
    params: ScriptParams = call.params
    if (params.code is None) == (params.file is None):
        raise StepFailed("with: expected either code or file", retriable=False)
    services = await call.context.step_services()
    streams = {
        "stdout": ScriptOutputLines(lambda line: call.log("info", line)),
        "stderr": ScriptOutputLines(lambda line: call.log("warning", line)),
    }

    def on_output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        streams[stream].add(data)

    try:
        script = await _script(params, call, services.scripts())
        key = [
            script.name,
            script.text,
            *params.args,
            *(part for file in script.files.items() for part in file),
        ]
        async with replayed_calls(call, services, key) as run_id:
            with approve_through_step(call, services.gateway(), run_id):
                request = ScriptRequest(
                    script=script,
                    args=tuple(params.args),
                    timeout_ms=min(remaining_ms(call), call.context.services.settings.max_timeout_ms),
                    check=params.check,
                    owner=call.context.owner,
                    run_id=run_id,
                    on_output=on_output,
                )
                outcome = await services.scripts().run(request, services.script_gateway())
    except InvalidScript as refused:
        problems = [
            {"file": problem.file, "line": problem.line, "message": problem.message}
            for problem in refused.problems
        ]
        raise StepFailed(refused.message, retriable=False, details={"problems": problems}) from None
    for stream in streams.values():
        stream.add(b"", final=True)
    return await _result(outcome)


async def _script(params: ScriptParams, call: Call, scripts: ScriptRunner) -> Script:
    if params.file is None:
        return Script(params.code or "")
    folder = call.context.folder
    if folder is None:
        raise StepFailed("file: this run may not read files; use code instead", retriable=False)
    return await scripts.checker.read(folder / params.file)


async def _result(outcome: ScriptResult) -> Any:
    if outcome.exit_code != 0:
        message = outcome.message or f"The script ended with exit code {outcome.exit_code}."
        raise StepFailed(message, details={"exit_code": outcome.exit_code, "run_id": outcome.run_id})
    return None if outcome.value_json is None else await decode_large_value(outcome.value_json.encode())


RUN = Kind("toolscript.run", _run, params=ScriptParams)
