"""`hutch tool`: a tool of an npm package by hand, installed, run and over."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from msgspec.structs import replace

from hutch import settings as settings_module
from hutch.app import App
from hutch.cli import loop
from hutch.cli.alone import ALONE, started
from hutch.cli.arguments import env_of, params_of, within
from hutch.cli.output import defused, print_json, print_log
from hutch.cli.packages import Progress
from hutch.doors.tpmjs.calls import ToolCall, ToolFailure, ToolOutcome
from hutch.errors import InvalidExecution, PackageNotFound
from hutch.npm import names
from hutch.npm.names import PackageSpec
from hutch.npm.shelf import Package
from hutch.settings import Settings

CALLER = "cli"


def run_tool(
    package: str,
    name: str,
    *,
    params: str | None,
    env: Sequence[str],
    timeout: float | None,
    json: bool,
) -> int:
    """The command's exit code."""
    settings = settings_module.load(ALONE)
    seconds = within("--timeout", "seconds", timeout, settings.most_timeout_ms / 1000)
    if seconds is not None:
        settings = replace(settings, tool_timeout_ms=max(1, int(seconds * 1000)))
    spec = names.parse_argument(package)
    if not name:
        raise InvalidExecution("NAME", "expected the name of an export")
    call = ToolCall(spec=spec, name=name, params=params_of(params), env=env_of(env), caller=CALLER)
    began = time.monotonic()
    console = None if json else Console()
    outcome = loop.run(_run(settings, call, console))
    if console is not None:
        return _show(outcome, console)
    from hutch.doors.tpmjs.answers import executed

    elapsed = int((time.monotonic() - began) * 1000)
    print_json(executed(outcome, "1.0", elapsed).body)
    return 0 if outcome.failure is None else 1


class Console:
    """Shows what a tool prints as it comes."""

    def __init__(self) -> None:
        self.lines = 0

    def log(self, line: str) -> None:
        self.lines += 1
        print_log(line)

    def partial(self, json: bytes) -> None:
        """Of values that are to come together in the output nothing is shown before."""


async def fetched(app: App, spec: PackageSpec) -> Package:
    """The package, with a word about its installation if it has to be installed. Raises as the shelf does."""
    progress = Progress(str(spec))
    try:
        return await app.shelf.get(spec, progress)
    finally:
        progress.end()


async def _run(settings: Settings, call: ToolCall, console: Console | None) -> ToolOutcome:
    async with started(settings) as app:
        try:
            package = await fetched(app, call.spec)
        except PackageNotFound as error:
            failure = ToolFailure("package_not_found", error.message, error.retryable)
            return ToolOutcome(failure=failure)
        exact = replace(call, spec=PackageSpec(package.name, package.version))
        return await app.tools.execute(exact, console)


def _show(outcome: ToolOutcome, console: Console) -> int:
    # Of a tool whose process was ended there is more in the end than came while it ran.
    for line in outcome.logs[console.lines :]:
        console.log(line)
    if outcome.logs_truncated:
        print("hutch: the logs were truncated", file=sys.stderr)
    if outcome.failure is not None:
        print(f"hutch: {defused(told(outcome.failure))}", file=sys.stderr)
        return 1
    print_json(outcome.output_json or b"null")
    return 0


def told(failure: ToolFailure) -> str:
    """In the protocol's words."""
    from hutch.doors.tpmjs.answers import KINDS

    return f"{KINDS[failure.code].code}: {failure.message}"
