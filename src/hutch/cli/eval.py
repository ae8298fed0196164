"""`hutch eval`: runs code in the sandbox."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hutch.api.hutch import Hutch
from hutch.api.options import Engine
from hutch.cli.support import event_loop
from hutch.cli.support.arguments import check_range, read_text
from hutch.cli.support.console import (
    print_error,
    print_json,
    print_log,
    print_message,
    print_note,
)
from hutch.cli.support.project import current_folder, load_project_settings
from hutch.cli.support.run_files import describe, read_input_files, save_files
from hutch.errors import InvalidExecution, wire_code
from hutch.sandbox.runner.profile import profile_for
from hutch.session.messages import WireError
from hutch.session.run import Result
from hutch.settings import MIB, Settings


def evaluate(
    code: str | None,
    file: Path | None,
    *,
    engine: Engine,
    timeout: float | None,
    memory: float | None,
    session: str | None,
    input_files: Sequence[Path],
    save_in: Path | None,
    force: bool,
    json: bool,
) -> int:
    # Keep no runners ready, because no other execution follows.
    settings = load_project_settings({"quickjs_warm": 0, "deno_warm": 0}, current_folder())
    profile_for(engine)
    seconds = check_range("--timeout", "seconds", timeout, settings.max_timeout_ms / 1000)
    megabytes = check_range("--memory", "MB", memory, settings.max_memory_limit_bytes / MIB)
    source = _read_source(code, file)
    if session is not None and engine != "quickjs":
        raise InvalidExecution("--engine", f"expected quickjs, which sessions need, got {engine}")
    if session is not None and (input_files or save_in is not None):
        raise InvalidExecution(
            "--session", "expected no --input-file and no --save-files: sessions have no files"
        )
    on_log = None if json else print_log
    timeout_ms = None if seconds is None else max(1, seconds * 1000)
    memory_limit_bytes = None if megabytes is None else max(1, int(megabytes * MIB))
    files = read_input_files(input_files, settings.max_file_bytes)

    async def run() -> Result:
        async with Hutch(settings=settings) as hutch:
            if session is not None:
                return await hutch.session(session).run(
                    source, on_log=on_log, timeout_ms=timeout_ms, memory_limit_bytes=memory_limit_bytes
                )
            return await hutch.run(
                source,
                files=files,
                engine=engine,
                timeout_ms=timeout_ms,
                memory_limit_bytes=memory_limit_bytes,
                on_log=on_log,
            )

    result = event_loop.run_async(run())
    _print_result(result, source, settings, json=json)
    is_saved = True
    if save_in is not None:
        is_saved = save_files(result.files, save_in, force=force)
    elif result.files and not json:
        names = ", ".join(f"{file.name} ({describe(file)})" for file in result.files)
        print_note(f"the code wrote {names}; --save-files DIR saves these files")
    return 0 if result.ok and is_saved else 1


def _read_source(code: str | None, file: Path | None) -> str:
    if code is None and file is None:
        raise InvalidExecution("CODE", "expected code, or - for stdin, or -f FILE; got none of them")
    if code is not None and file is not None:
        raise InvalidExecution("CODE", f"expected either code or -f FILE, got both ({file})")
    if file is None and code != "-":
        return code or ""
    return read_text(None if file is None or str(file) == "-" else file)


def _print_result(result: Result, source: str, settings: Settings, *, json: bool) -> None:
    if json:
        print_json(_encode_result(result))
        return
    if result.logs_truncated:
        more = "HUTCH_MAX_LOG_LINES and HUTCH_MAX_LOG_CHARS allow more"
        print_note(f"the logs were truncated; {more}")
    for warning in result.warnings:
        print_note(warning)
    if result.error is None:
        # Print nothing for an undefined result, because it has no JSON representation.
        if result.result_json is not None:
            print_json(result.result_json)
        return
    error = result.error
    print_error(f"{wire_code(error.code)}: {error}{_limit_hint(error.code, settings)}")
    if sys.stderr.isatty() and error.line is not None:
        from hutch.protocols.toolscript.checker.diagnostics import marked_line

        print_message("\n".join(marked_line(source, error.line, error.column or 1)))


def _limit_hint(code: str, settings: Settings) -> str:
    """Returns a hint that names the option for the exceeded limit, or an empty text."""
    if code == "timeout":
        return f"; --timeout SECONDS allows up to {settings.max_timeout_ms / 1000:g}"
    if code == "memory_limit":
        return f"; --memory MB allows up to {settings.max_memory_limit_bytes / MIB:g}"
    return ""


def _encode_result(result: Result) -> bytes:
    """Encodes a result in the format of Execbox."""
    body: dict[str, object] = {"ok": result.ok}
    if result.error is not None:
        body["error"] = WireError.of(result.error)
    elif result.result_json is not None:
        body["result"] = msgspec.Raw(result.result_json)
    body |= {"logs": result.logs, "durationMs": result.duration_ms}
    if result.warnings:
        body["warnings"] = [*result.warnings]
    if result.files:
        body["files"] = [
            {"name": file.name, "mimeType": file.mime_type, "size": file.size} for file in result.files
        ]
    return msgspec.json.encode(body)
