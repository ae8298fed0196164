"""`hutch exec`: a toolscript by hand, against a running gateway or one of its own."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from hutch import settings as settings_module
from hutch.app import App
from hutch.cli import asking, exit_code_of, loop
from hutch.cli.alone import ALONE, started
from hutch.cli.arguments import text_of, within
from hutch.cli.output import print_json
from hutch.doors.toolscript.check import Script
from hutch.doors.toolscript.execute import VARIABLE, Ending, Request, World
from hutch.doors.toolscript.problems import ScriptRefused
from hutch.doors.toolscript.source import may_return
from hutch.doors.toolscript.there import There
from hutch.errors import HutchError, InvalidExecution
from hutch.settings import MIB, Settings

# Of each stream, for --json: it is all in memory until the script has ended.
MOST_CAPTURED_BYTES = 16 * MIB


def execute(
    code: str | None,
    file: Path | None,
    args: Sequence[str],
    *,
    gateway_url: str | None,
    timeout: float | None,
    memory: float | None,
    check: bool,
    json: bool,
) -> int:
    """The command's exit code: the script's own, 1 if it failed, 124 if it took too long."""
    output = Captured() if json else Passed()
    try:
        return _run(code, file, args, output, url=gateway_url, timeout=timeout, memory=memory, check=check)
    except loop.Terminated:
        if output.is_unread:
            raise BrokenPipeError from None
        raise
    except ScriptRefused as refused:
        return output.refused(refused)
    except HutchError as error:
        if not isinstance(output, Captured):
            raise
        return output.not_begun(error)


def _run(
    code: str | None,
    file: Path | None,
    args: Sequence[str],
    output: Passed | Captured,
    *,
    url: str | None,
    timeout: float | None,
    memory: float | None,
    check: bool,
) -> int:
    source = _source(code, file)
    settings = settings_module.load(ALONE)
    seconds = within("--timeout", "seconds", timeout, settings.most_timeout_ms / 1000)
    megabytes = within("--memory", "MB", memory, settings.most_memory_limit_bytes / MIB)
    request = {
        "args": tuple(args),
        "cwd": str(Path.cwd()),
        "timeout_ms": None if seconds is None else seconds * 1000,
        "memory_bytes": None if megabytes is None else int(megabytes * MIB),
        "check": check,
        "on_output": output,
    }
    return output.show(loop.run(_execute(settings, source, url or os.environ.get(VARIABLE) or None, request)))


def _source(code: str | None, file: Path | None) -> str | Path:
    if code is not None:
        return text_of(None) if code == "-" else code
    if file is None:
        raise InvalidExecution("CODE", "expected CODE, or --file FILE")
    if not file.is_file():
        what = "is no file" if file.exists() else "is not there"
        raise InvalidExecution("--file", f"{file} {what}")
    return file


async def _execute(settings: Settings, source: str | Path, url: str | None, request: Any) -> Ending:
    task = asyncio.current_task()
    assert task is not None
    request["on_output"].stop = task.cancel
    async with started(settings) as app, _world(app, url) as world:
        # A process and the compiler start while the rest is still being looked at.
        warming = [asyncio.create_task(app.scripts.warm(world, cwd=request["cwd"]))]
        if request["check"] or not isinstance(source, str) or may_return(source):
            warming.append(asyncio.create_task(app.scripts.checker.start()))
        try:
            script = Script(source) if isinstance(source, str) else await app.scripts.checker.read(source)
            if isinstance(world, There) and not request["check"]:
                await world.check()
            return await app.scripts.run(Request(script=script, **request), world)
        finally:
            for task in warming:
                task.cancel()
            await asyncio.gather(*warming, return_exceptions=True)


@asynccontextmanager
async def _world(app: App, url: str | None) -> AsyncIterator[World]:
    ask = asking.Person().ask if asking.is_possible() else None
    if url is None:
        # Nobody else could answer: this gateway is nowhere but here.
        app.gateway.approvals.ask = ask or asking.nobody
        yield app.world
        return
    there = There(url, app.settings.api_key, ask=ask, hold=app.kernel.hold, go_on=app.kernel.go_on)
    try:
        yield there
    finally:
        await there.close()


class Passed:
    """What the script prints, as it comes; what it returned, at the end."""

    def __init__(self) -> None:
        self.stop: Callable[[], object] = lambda: None
        self.is_unread = False
        """Whether who read our output has enough, and the script was stopped for that."""

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        target = 1 if stream == "stdout" else 2
        while data and not self.is_unread:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                # Somebody else who has this file open wants it like that.
                select.select([], [target], [])
            except BrokenPipeError:
                self.is_unread = True
                self.stop()

    def refused(self, refused: ScriptRefused) -> int:
        print(refused.message, file=sys.stderr)
        return 1

    def show(self, ending: Ending) -> int:
        if ending.value_json is not None:
            print_json(ending.value_json.encode())
        if ending.message is not None:
            print(f"hutch: {ending.message}", file=sys.stderr)
        return ending.exit_code


class Captured:
    """The same in one object on one line."""

    def __init__(self) -> None:
        self.stop: Callable[[], object] = lambda: None
        self.is_unread = False
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._is_cut = False

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        kept = self._streams[stream]
        room = MOST_CAPTURED_BYTES - len(kept)
        kept += data[:room]
        self._is_cut |= len(data) > room

    def refused(self, refused: ScriptRefused) -> int:
        problems = [
            {
                "file": each.file,
                "line": each.line,
                "column": each.column,
                "message": each.message,
                "code": each.code,
            }
            for each in refused.problems
        ]
        self._print(ok=False, exitCode=1, error={"message": refused.message, "problems": problems})
        return 1

    def not_begun(self, error: HutchError) -> int:
        code = exit_code_of(error)
        self._print(ok=False, exitCode=code, error={"message": str(error)})
        return code

    def show(self, ending: Ending) -> int:
        fields: dict[str, Any] = {"ok": ending.exit_code == 0, "exitCode": ending.exit_code}
        if ending.value_json is not None:
            fields["result"] = msgspec.Raw(ending.value_json.encode())
        if ending.message is not None:
            fields["error"] = {"message": ending.message}
        self._print(**fields, durationMs=ending.duration_ms, runId=ending.run_id)
        return ending.exit_code

    def _print(self, **fields: Any) -> None:
        streams = {name: data.decode(errors="replace") for name, data in self._streams.items()}
        cut = {"outputTruncated": True} if self._is_cut else {}
        print_json(msgspec.json.encode({**fields, **streams, **cut}))
