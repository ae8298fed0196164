"""`hutch exec`: runs a toolscript with a gateway that is already running or with one in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from hutch.app.app import App
from hutch.cli.support import event_loop, prompts
from hutch.cli.support.arguments import check_range, read_text
from hutch.cli.support.console import GuestOutput, exit_code_of, print_json, print_message, print_note
from hutch.cli.support.event_loop import ONE_SHOT_SETTINGS, open_app
from hutch.cli.support.project import current_folder, load_project_settings, project_servers
from hutch.errors import HutchError, InvalidExecution
from hutch.protocols.toolscript.checker.checker import Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript
from hutch.protocols.toolscript.checker.rewrite import may_return
from hutch.protocols.toolscript.execute import (
    GATEWAY_VARIABLE,
    TIMEOUT_EXIT_CODE,
    ScriptGateway,
    ScriptRequest,
    ScriptResult,
)
from hutch.protocols.toolscript.gateway.remote import RemoteGateway
from hutch.settings import MIB, Settings

# Maximum size of each stream with --json, because the output is then kept in memory until the script has
# ended.
MAX_CAPTURED_BYTES = 16 * MIB


def execute(
    code: str | None,
    file: Path | None,
    args: Sequence[str],
    *,
    gateway_url: str | None,
    timeout: float | None,
    memory: float | None,
    check: bool,
    strict: bool | None,
    json: bool,
) -> int:
    """Runs a script. Returns its exit code, 1 if it failed, or 124 if it timed out."""
    output = JsonOutput() if json else StreamedOutput()
    try:
        limits = {"timeout": timeout, "memory": memory}
        return _run(code, file, args, output, url=gateway_url, check=check, strict=strict, **limits)
    except event_loop.Terminated:
        if output.is_broken_pipe:
            raise BrokenPipeError from None
        raise
    except InvalidScript as error:
        return output.print_invalid_script(error)
    except HutchError as error:
        if not isinstance(output, JsonOutput):
            raise
        return output.print_error(error)


def _run(
    code: str | None,
    file: Path | None,
    args: Sequence[str],
    output: StreamedOutput | JsonOutput,
    *,
    url: str | None,
    timeout: float | None,
    memory: float | None,
    check: bool,
    strict: bool | None,
) -> int:
    source = _read_source(code, file)
    settings = load_project_settings(ONE_SHOT_SETTINGS, current_folder())
    seconds = check_range("--timeout", "seconds", timeout, settings.max_timeout_ms / 1000)
    megabytes = check_range("--memory", "MB", memory, settings.max_memory_limit_bytes / MIB)
    request = {
        "args": tuple(args),
        "cwd": str(Path.cwd()),
        "timeout_ms": None if seconds is None else seconds * 1000,
        "memory_bytes": None if megabytes is None else int(megabytes * MIB),
        "check": check,
        "strict": strict,
        "on_output": output,
    }
    gateway_url = url or os.environ.get(GATEWAY_VARIABLE) or None
    result = event_loop.run_async(_execute(settings, source, gateway_url, request))
    maximum = settings.max_timeout_ms / 1000
    is_timeout = result.exit_code == TIMEOUT_EXIT_CODE and result.message is not None
    if is_timeout and (seconds or settings.script_timeout_ms / 1000) < maximum:
        message = f"{result.message}; --timeout SECONDS allows up to {maximum:g}"
        result = msgspec.structs.replace(result, message=message)
    return output.print_result(result)


def _read_source(code: str | None, file: Path | None) -> str | Path:
    if code is not None:
        return read_text(None) if code == "-" else code
    if file is None:
        raise InvalidExecution("CODE", "expected CODE, or --file FILE")
    if not file.is_file():
        problem = "is not a file" if file.exists() else "does not exist"
        raise InvalidExecution("--file", f"{file} {problem}")
    return file


async def _execute(settings: Settings, source: str | Path, url: str | None, request: Any) -> ScriptResult:
    task = asyncio.current_task()
    assert task is not None
    request["on_output"].stop = task.cancel
    servers = project_servers(settings, current_folder())
    async with open_app(settings, servers) as app, _open_gateway(app, url) as gateway:
        # Start the runner and the compiler while the script is being read.
        warming = [asyncio.create_task(app.scripts.warm(gateway, cwd=request["cwd"]))]
        if request["check"] or not isinstance(source, str) or may_return(source):
            warming.append(asyncio.create_task(app.scripts.checker.start()))
        try:
            script = Script(source) if isinstance(source, str) else await app.scripts.checker.read(source)
            if isinstance(gateway, RemoteGateway) and not request["check"]:
                await gateway.check()
            return await app.scripts.run(ScriptRequest(script=script, **request), gateway)
        finally:
            for task in warming:
                task.cancel()
            await asyncio.gather(*warming, return_exceptions=True)


@asynccontextmanager
async def _open_gateway(app: App, url: str | None) -> AsyncIterator[ScriptGateway]:
    ask = prompts.TerminalPrompt().ask if prompts.can_prompt() else None
    if url is None:
        # Ask at the terminal or deny calls, because no other client can reach this gateway to approve them.
        app.gateway.approvals.ask = ask or prompts.deny_without_terminal
        yield app.script_gateway
        return
    remote = RemoteGateway(
        url,
        app.settings.api_key,
        ask=ask,
        pause_timeout=app.kernel.pause_timeout,
        resume_timeout=app.kernel.resume_timeout,
    )
    try:
        yield remote
    finally:
        await remote.close()


class StreamedOutput:
    """Prints the script's output as it arrives, and its return value at the end."""

    def __init__(self) -> None:
        self.stop: Callable[[], object] = lambda: None
        self.is_broken_pipe = False
        """True if the reader closed stdout or stderr, which stops the script."""
        self._outputs = {"stdout": GuestOutput("stdout"), "stderr": GuestOutput("stderr")}

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if self.is_broken_pipe:
            return
        try:
            self._outputs[stream].write(data)
        except BrokenPipeError:
            self.is_broken_pipe = True
            self.stop()

    def print_invalid_script(self, error: InvalidScript) -> int:
        print_message(error.message)
        return 1

    def print_result(self, result: ScriptResult) -> int:
        if result.value_json is not None:
            print_json(result.value_json.encode())
        if result.message is not None:
            print_note(result.message)
        return result.exit_code


class JsonOutput:
    """Prints the output and the result as one JSON object at the end."""

    def __init__(self) -> None:
        self.stop: Callable[[], object] = lambda: None
        self.is_broken_pipe = False
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._is_truncated = False

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        captured = self._streams[stream]
        free_bytes = MAX_CAPTURED_BYTES - len(captured)
        captured += data[:free_bytes]
        self._is_truncated |= len(data) > free_bytes

    def print_invalid_script(self, error: InvalidScript) -> int:
        problems = [
            {
                "file": problem.file,
                "line": problem.line,
                "column": problem.column,
                "message": problem.message,
                "code": problem.code,
            }
            for problem in error.problems
        ]
        self._print(ok=False, exitCode=1, error={"message": error.message, "problems": problems})
        return 1

    def print_error(self, error: HutchError) -> int:
        code = exit_code_of(error)
        self._print(ok=False, exitCode=code, error={"message": str(error)})
        return code

    def print_result(self, result: ScriptResult) -> int:
        fields: dict[str, Any] = {"ok": result.exit_code == 0, "exitCode": result.exit_code}
        if result.value_json is not None:
            fields["result"] = msgspec.Raw(result.value_json.encode())
        if result.message is not None:
            fields["error"] = {"message": result.message}
        self._print(**fields, durationMs=result.duration_ms, runId=result.run_id)
        return result.exit_code

    def _print(self, **fields: Any) -> None:
        streams = {name: data.decode(errors="replace") for name, data in self._streams.items()}
        truncated = {"outputTruncated": True} if self._is_truncated else {}
        print_json(msgspec.json.encode({**fields, **streams, **truncated}))
