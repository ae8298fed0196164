"""`hutch eval`: code in, result out."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import uvloop

from hutch.api import Hutch
from hutch.errors import HutchError, InvalidExecution, wire_code
from hutch.kernel import Result
from hutch.settings import MIB


def evaluate(
    code: str | None, file: Path | None, *, engine: str, timeout: float, memory: float, json: bool
) -> int:
    """The command's exit code."""
    source = _source(code, file)

    async def run() -> Result:
        async with Hutch() as hutch:
            return await hutch.run(
                source, engine=engine, timeout_ms=timeout * 1000, memory_limit_bytes=int(memory * MIB)
            )

    result = uvloop.run(run())
    _print(result, json=json)
    return 0 if result.ok else 1


def _source(code: str | None, file: Path | None) -> str:
    if (code is None) == (file is None):
        raise InvalidExecution("CODE", "expected either code or -f FILE")
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        return sys.stdin.read() if code == "-" else code or ""
    except (OSError, UnicodeDecodeError) as error:
        raise HutchError(f"{file or 'stdin'} cannot be read: {error}") from None


def _print(result: Result, *, json: bool) -> None:
    if json:
        print(_object(result))
        return
    for line in result.logs:
        print(line, file=sys.stderr)
    if result.logs_truncated:
        print("hutch: the logs were truncated", file=sys.stderr)
    if result.error is None:
        if result.result_json is not None:
            print(result.result_json.decode())
        return
    error = result.error
    where = f" (line {error.line}, column {error.column})" if error.line else ""
    name = f"{error.name}: " if error.name and error.name != "Error" else ""
    print(f"hutch: {wire_code(error.code)}: {name}{error.message}{where}", file=sys.stderr)


def _object(result: Result) -> str:
    """The protocol's result object, on one line."""
    body: dict[str, object] = {"ok": result.ok}
    if result.error is not None:
        body["error"] = msgspec.structs.replace(result.error, code=wire_code(result.error.code))
    elif result.result_json is not None:
        body["result"] = msgspec.Raw(result.result_json)
    body |= {"logs": result.logs, "durationMs": result.duration_ms}
    return msgspec.json.encode(body).decode()
