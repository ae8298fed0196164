"""`toolscript.run`: a script over all MCP tools, checked, then in a jail of its own."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from hutch.doors.rep.kinds.asking import asked
from hutch.doors.rep.kinds.code import milliseconds
from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed
from hutch.doors.toolscript.check import Script
from hutch.doors.toolscript.execute import Ending, Request
from hutch.doors.toolscript.problems import ScriptRefused
from hutch.session.jsonvalue import decode_value

_MOST_LINE = 8_192


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The script itself, or the file that it is in."""

    code: str | None = None
    file: str | None = None
    args: list[str] = []
    check: bool = True


class Printed:
    """What a script prints, line by line."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def add(self, data: bytes, *, final: bool = False) -> None:
        *lines, self._rest = (self._rest + self._decode(data, final)).split("\n")
        if final or len(self._rest) > _MOST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:
            if line:
                self._take(line)


async def _run(call: Call) -> Any:
    params: Params = call.params
    if (params.code is None) == (params.file is None):
        raise StepFailed("with: expected either code or file", retriable=False)
    app = await call.context.app()
    streams = {
        "stdout": Printed(lambda line: call.log("info", line)),
        "stderr": Printed(lambda line: call.log("warning", line)),
    }

    def on_output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        streams[stream].add(data)

    try:
        script = await _script(params, call)
        with asked(call, app.gateway) as name:
            request = Request(
                script=script,
                args=tuple(params.args),
                timeout_ms=min(milliseconds(call, app.settings), app.settings.most_timeout_ms),
                check=params.check,
                owner=call.context.owner,
                run_id=name,
                on_output=on_output,
            )
            ending = await app.scripts.run(request, app.world)
    except ScriptRefused as refused:
        problems = [
            {"file": each.file, "line": each.line, "message": each.message} for each in refused.problems
        ]
        raise StepFailed(refused.message, retriable=False, details={"problems": problems}) from None
    for each in streams.values():
        each.add(b"", final=True)
    return _value(ending)


async def _script(params: Params, call: Call) -> Script:
    if params.file is None:
        return Script(params.code or "")
    folder = call.context.folder
    if folder is None:
        raise StepFailed("file: this run may name no files; expected code", retriable=False)
    return await (await call.context.app()).scripts.checker.read(folder / params.file)


def _value(ending: Ending) -> Any:
    if ending.exit_code != 0:
        message = ending.message or f"The script ended with exit code {ending.exit_code}."
        raise StepFailed(message, details={"exit_code": ending.exit_code, "run_id": ending.run_id})
    return None if ending.value_json is None else decode_value(ending.value_json.encode())


RUN = Kind("toolscript.run", _run, params=Params)
