"""`hutch eval`: code in, result out."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

from hutch import settings as settings_module
from hutch.api import Hutch
from hutch.cli import loop
from hutch.cli.arguments import text_of, within
from hutch.cli.output import defused, print_json, print_log
from hutch.errors import InvalidExecution, wire_code
from hutch.kernel import Result
from hutch.sandbox.profile import profile_for
from hutch.settings import MIB, Settings


def evaluate(
    code: str | None,
    file: Path | None,
    *,
    engine: str,
    timeout: float | None,
    memory: float | None,
    json: bool,
) -> int:
    """The command's exit code."""
    # Nothing comes after this one execution, so nothing is to be kept ready for it.
    settings = settings_module.load({"quickjs_warm": 0, "deno_warm": 0})
    profile_for(engine)
    seconds = within("--timeout", "seconds", timeout, settings.most_timeout_ms / 1000)
    megabytes = within("--memory", "MB", memory, settings.most_memory_limit_bytes / MIB)
    source = _source(code, file)

    async def run() -> Result:
        async with Hutch(settings=settings) as hutch:
            return await hutch.run(
                source,
                engine=engine,
                timeout_ms=None if seconds is None else max(1, seconds * 1000),
                memory_limit_bytes=None if megabytes is None else max(1, int(megabytes * MIB)),
            )

    result = loop.run(run())
    _print(result, settings, json=json)
    return 0 if result.ok else 1


def _source(code: str | None, file: Path | None) -> str:
    if code is None and file is None:
        raise InvalidExecution("CODE", "expected code, or - for stdin, or -f FILE; got none of them")
    if code is not None and file is not None:
        raise InvalidExecution("CODE", f"expected either code or -f FILE, got both ({file})")
    if file is None and code != "-":
        return code or ""
    return text_of(None if file is None or str(file) == "-" else file)


def _print(result: Result, settings: Settings, *, json: bool) -> None:
    if json:
        print_json(_object(result))
        return
    for line in result.logs:
        print_log(line)
    if result.logs_truncated:
        more = "HUTCH_MAX_LOG_LINES and HUTCH_MAX_LOG_CHARS allow more"
        print(f"hutch: the logs were truncated; {more}", file=sys.stderr)
    if result.error is None:
        # An undefined result has no JSON.
        if result.result_json is not None:
            print_json(result.result_json)
        return
    error = result.error
    # A syntax error's own message says where.
    told = error.line is None or re.search(r"\(\d+:\d+\)$", error.message)
    where = "" if told else f" (line {error.line}, column {error.column})"
    name = f"{error.name}: " if error.name and error.name != "Error" else ""
    said = defused(f"{name}{error.message}{where}")
    print(f"hutch: {wire_code(error.code)}: {said}{_advice(error.code, settings)}", file=sys.stderr)


def _advice(code: str, settings: Settings) -> str:
    """What allows more of what was too little."""
    if code == "timeout":
        return f"; --timeout SECONDS allows up to {settings.most_timeout_ms / 1000:g}"
    if code == "memory_limit":
        return f"; --memory MB allows up to {settings.most_memory_limit_bytes / MIB:g}"
    return ""


def _object(result: Result) -> bytes:
    """The protocol's result object, on one line."""
    body: dict[str, object] = {"ok": result.ok}
    if result.error is not None:
        body["error"] = msgspec.structs.replace(result.error, code=wire_code(result.error.code))
    elif result.result_json is not None:
        body["result"] = msgspec.Raw(result.result_json)
    body |= {"logs": result.logs, "durationMs": result.duration_ms}
    return msgspec.json.encode(body)
