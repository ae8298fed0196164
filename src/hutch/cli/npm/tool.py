"""`hutch tool`: runs a tool of an npm package, or of a package that is not published."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from hutch.cli.support import console, event_loop
from hutch.cli.support.arguments import check_range, parse_env, parse_params
from hutch.cli.support.console import print_json, print_log
from hutch.cli.support.event_loop import ONE_SHOT_SETTINGS, open_app
from hutch.cli.support.project import current_folder, load_project_settings
from hutch.errors import HutchError, InvalidExecution, PackageNotFound
from hutch.npm.local.sources import fingerprint, is_local_argument, local_path
from hutch.npm.package_spec import PackageSpec, parse_spec_argument
from hutch.npm.packages import Package
from hutch.protocols.tpmjs.models import PackageToolCall, ToolFailure, ToolOutcome

if TYPE_CHECKING:
    from hutch.app.app import App

CALLER = "cli"
# Interval at which the files are checked for changes. Checking a thousand files takes about 5 ms.
POLL_SECONDS = 0.3


class LocalArgument(msgspec.Struct, frozen=True):
    """Folder or archive of a package that is not published, and the argument that named it."""

    path: Path
    text: str

    def __str__(self) -> str:
        return self.text


PackageArgument = PackageSpec | LocalArgument


def parse_package_argument(text: str) -> PackageArgument:
    """Parses a package of the registry or a path. Raises InvalidPackage."""
    return LocalArgument(local_path(text), text) if is_local_argument(text) else parse_spec_argument(text)


class ToolCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed arguments of `hutch tool`."""

    package: PackageArgument
    name: str
    params: dict[str, Any]
    env: dict[str, str]
    refresh: bool
    validate: bool
    json: bool


def run_tool(
    package: str,
    name: str,
    *,
    params: str | None,
    env: Sequence[str],
    timeout: float | None,
    refresh: bool,
    validate: bool,
    watch: bool,
    json: bool,
) -> int:
    settings = load_project_settings(ONE_SHOT_SETTINGS, current_folder())
    seconds = check_range("--timeout", "seconds", timeout, settings.max_timeout_ms / 1000)
    if seconds is not None:
        settings = replace(settings, tool_timeout_ms=max(1, int(seconds * 1000)))
    if not name:
        raise InvalidExecution("NAME", "expected the name of an export")
    command = ToolCommand(
        package=parse_package_argument(package),
        name=name,
        params=parse_params(params),
        env=parse_env(env),
        refresh=refresh,
        validate=validate,
        json=json,
    )

    async def main() -> int:
        async with open_app(settings) as app:
            if not watch:
                return await _run(app, command)
            if isinstance(command.package, PackageSpec):
                raise InvalidExecution("--watch", f"expected a folder or archive, got the package {package}")
            return await _watch(app, command, command.package)

    return event_loop.run_async(main())


async def _run(app: App, command: ToolCommand) -> int:
    """Runs the tool once and prints the outcome. Returns the exit code."""
    started_at = time.monotonic()
    printer = None if command.json else LogPrinter()
    outcome = await _call(app, command, printer)
    if printer is not None:
        return _print_outcome(outcome, printer)
    from hutch.protocols.tpmjs.responses import execution_response

    elapsed = int((time.monotonic() - started_at) * 1000)
    print_json(execution_response(outcome, "1.0", elapsed).body)
    return 0 if outcome.failure is None else 1


async def _call(app: App, command: ToolCommand, printer: LogPrinter | None) -> ToolOutcome:
    try:
        async with open_package(app, command.package, refresh=command.refresh) as package:
            call = PackageToolCall(
                spec=PackageSpec(package.name, package.version),
                name=command.name,
                params=command.params,
                env=command.env,
                caller=CALLER,
                validate=command.validate,
            )
            return await app.tools.execute_package(package, call, printer)
    except PackageNotFound as error:
        from hutch.protocols.tpmjs.execute import package_failure

        return ToolOutcome(failure=package_failure(error))


# --- packages ---


@asynccontextmanager
async def open_package(
    app: App, argument: PackageArgument, *, refresh: bool = False
) -> AsyncIterator[Package]:
    """Yields a package of the registry, or one that is not published. Installs missing packages and shows
    progress. With `refresh`, asks the registry to resolve ranges and tags again. Raises like
    `PackageManager`.
    """
    progress = InstallProgress(str(argument))
    async with AsyncExitStack() as stack:
        note = None
        try:
            if isinstance(argument, PackageSpec):
                get = app.packages.add if refresh else app.packages.get
                package = await get(argument, progress)
            else:
                opening = app.packages.open_local(argument.path, argument.text, progress, refresh=refresh)
                local = await stack.enter_async_context(opening)
                package, note = local.package, local.note
        except PackageNotFound as error:
            raise _with_suggestion(error, argument) from None
        finally:
            progress.end()
        if note:
            console.print_note(note)
        yield package


def _with_suggestion(error: PackageNotFound, argument: PackageArgument) -> PackageNotFound:
    """If a folder has the name of the missing package, adds a hint with the path of this folder."""
    if isinstance(argument, PackageSpec) and Path(argument.name, "package.json").is_file():
        message = f"{error.message} To run the folder {argument.name}, write ./{argument.name}."
        return PackageNotFound(message, retryable=error.retryable)
    return error


class InstallProgress:
    """Shows the progress of an installation on stderr, in place on a terminal and otherwise line by line."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._line = console.ProgressLine() if sys.stderr.isatty() else None

    def __call__(self, text: str) -> None:
        if self._line is not None:
            self._line.show(f"{self._subject}: {text}")
        elif not text.startswith("downloading"):
            console.print_note(text)

    def end(self) -> None:
        if self._line is not None:
            self._line.clear()


# --- output ---


class LogPrinter:
    """Prints a tool's log lines as they arrive."""

    def __init__(self) -> None:
        self.printed_lines = 0

    def log(self, line: str) -> None:
        self.printed_lines += 1
        print_log(line)

    def partial(self, json: bytes) -> None:
        """Does nothing, because the final output, which is printed at the end, contains all partial
        values.
        """


def _print_outcome(outcome: ToolOutcome, printer: LogPrinter) -> int:
    # Print the lines that were not streamed: if the tool's process was killed, the last lines are only in the
    # outcome.
    for line in outcome.logs[printer.printed_lines :]:
        printer.log(line)
    for warning in outcome.warnings:
        console.print_note(f"warning: {warning}")
    if outcome.logs_truncated:
        console.print_note("the logs were truncated")
    if outcome.failure is not None:
        console.print_error(describe_failure(outcome.failure))
        return 1
    print_json(outcome.output_json or b"null")
    return 0


_FACTORY_HINT = (
    "; the export is a function, which was called to get the tool: --env passes variables that it needs,"
    " and a tool itself is an object with execute()"
)


def describe_failure(failure: ToolFailure) -> str:
    """Formats a failure with its TPMJS error code."""
    from hutch.protocols.tpmjs.responses import FAILURE_KINDS

    location = failure.location
    where = f" (at {location})" if location and location not in failure.message else ""
    hint = _FACTORY_HINT if failure.code == "configuration_required" else ""
    return f"{FAILURE_KINDS[failure.code].code}: {failure.message}{where}{hint}"


# --- watching ---


async def _watch(app: App, command: ToolCommand, local: LocalArgument) -> int:
    """Runs the tool now and whenever a file of the package changes, until the user presses Ctrl-C. A change
    during a run ends that run.
    """
    state = await asyncio.to_thread(fingerprint, local.path)
    while True:
        run = asyncio.create_task(_run_watched(app, command))
        try:
            state = await _next_state(local.path, state)
        finally:
            run.cancel()
            await asyncio.wait([run])
        # Ask the registry only in the first run, because files may change every few seconds.
        command = replace(command, refresh=False)


async def _next_state(path: Path, state: int) -> int:
    """Waits until the files differ from `state` and have stopped changing."""
    changed, newest = False, state
    while True:
        await asyncio.sleep(POLL_SECONDS)
        current = await asyncio.to_thread(fingerprint, path)
        changed = current != state
        if changed and current == newest:
            return current
        newest = current


async def _run_watched(app: App, command: ToolCommand) -> None:
    started_at = time.monotonic()
    try:
        status = await _run(app, command)
    except HutchError as error:
        console.print_note(str(error))
        status = 1
    verdict, clock = "failed" if status else "ok", time.strftime("%H:%M:%S")
    elapsed = _format_seconds(time.monotonic() - started_at)
    console.print_note(
        f"{verdict} at {clock} after {elapsed}; watching {command.package} for changes, Ctrl-C ends"
    )


def _format_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
