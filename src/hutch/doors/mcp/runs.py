"""Runs what a model wrote, as a toolscript or as JavaScript, and knows which run calls which tools."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

from hutch.doors.mcp.answers import MOST_CALLS, MOST_PROBLEMS, Failure, Place, Printed, Ran, ToolCall, bounded
from hutch.doors.mcp.arguments import RunCode
from hutch.doors.mcp.lending import providers
from hutch.doors.mcp.needs import Hutch
from hutch.doors.toolscript.check import Script
from hutch.doors.toolscript.execute import TIMED_OUT, Ending, Request
from hutch.doors.toolscript.gateway import Called
from hutch.doors.toolscript.problems import ScriptRefused
from hutch.errors import InvalidExecution
from hutch.kernel import Execution, Result, new_run_id
from hutch.sandbox.profile import profile_for
from hutch.session.jsonvalue import NotJsonSafe, decode_value
from hutch.settings import Settings

# What the script runner writes before it ends a script that failed.
_UNCAUGHT = re.compile(r"^error: Uncaught ", re.M)


class Calls:
    """What a run has called: how often, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Called] = []

    def add(self, call: Called) -> None:
        self.count += 1
        if len(self.first) < MOST_CALLS:
            self.first.append(call)


class Run:
    """A run that is under way, whose it is, and who is told of its calls."""

    def __init__(self, client: Any, on_call: Callable[[Called, int], None], owner: str | None = None) -> None:
        """`on_call` hears of each call and how many there were. The owner is the door's if none is given."""
        self.client = client
        self.owner = owner
        self.told = 0
        self.calls = Calls()
        self._on_call = on_call

    def tell(self, call: Called) -> None:
        self.told += 1
        self._on_call(call, self.told)


class Runs:
    """All runs of this door."""

    def __init__(self, hutch: Hutch, owner: str) -> None:
        self._hutch = hutch
        self._owner = owner
        self._named: dict[str, Run] = {}
        hutch.gateway.on_call.append(self._called)

    def close(self) -> None:
        self._hutch.gateway.on_call.remove(self._called)

    async def run(self, asked: RunCode, run: Run) -> Ran:
        """Runs to the end, and stops when cancelled. Raises HutchError for what could not be begun."""
        if asked.language == "javascript":
            return await self._javascript(asked, run)
        try:
            return await self._toolscript(asked, run)
        except ScriptRefused as refused:
            return bounded(Ran(ok=False, error=_refusal(refused), exit_code=1))

    def known(self, name: str | None) -> Run | None:
        """Who has the name."""
        return self._named.get(name or "")

    @contextlib.contextmanager
    def named(self, name: str, run: Run) -> Iterator[None]:
        self._named[name] = run
        try:
            yield
        finally:
            del self._named[name]

    def _called(self, call: Called) -> None:
        run = self.known(call.run)
        if run is not None:
            run.calls.add(call)
            run.tell(call)

    # --- toolscripts ---

    async def _toolscript(self, asked: RunCode, run: Run) -> Ran:
        printed: dict[Literal["stdout", "stderr"], Printed] = {"stdout": Printed(), "stderr": Printed()}
        request = Request(
            script=Script(asked.code),
            timeout_ms=_milliseconds(asked, self._hutch.settings),
            check=asked.check,
            owner=run.owner or self._owner,
            run_id=(run_id := new_run_id()),
            on_output=lambda stream, data: printed[stream].add(data),
        )
        with self.named(run_id, run):
            ending = await self._hutch.scripts.run(request, self._hutch.world)
        for each in printed.values():
            each.add(b"", final=True)
        return bounded(_ended(ending, run, printed["stderr"]), printed["stdout"], printed["stderr"])

    # --- JavaScript ---

    async def _javascript(self, asked: RunCode, run: Run) -> Ran:
        kernel = self._hutch.kernel
        timeout_ms = _milliseconds(asked, self._hutch.settings)
        execution = Execution(
            code=asked.code,
            profile=profile_for("quickjs"),
            limits=kernel.limits({"timeout_ms": timeout_ms}),
            providers=providers(await self._hutch.gateway.catalog(), self._hutch.gateway),
            owner=run.owner or self._owner,
            door="mcp",
            label="run_code",
            run_id=(run_id := new_run_id()),
        )
        with self.named(run_id, run):
            return bounded(_finished(await kernel.run(execution), run))


def _milliseconds(asked: RunCode, settings: Settings) -> float:
    if asked.timeout_seconds is None:
        return settings.script_timeout_ms
    most = settings.most_timeout_ms / 1000
    if asked.timeout_seconds > most:
        raise InvalidExecution("timeout_seconds", f"is {asked.timeout_seconds:g}; the most is {most:g}")
    return max(1.0, asked.timeout_seconds * 1000)


def _common(run: Run, duration_ms: float) -> dict[str, Any]:
    return {
        "tool_calls": [ToolCall.of(each) for each in run.calls.first],
        "tool_call_count": run.calls.count,
        "duration_ms": round(duration_ms, 1),
    }


def _ended(ending: Ending, run: Run, stderr: Printed) -> Ran:
    try:
        value = None if ending.value_json is None else decode_value(ending.value_json.encode())
    except (NotJsonSafe, UnicodeEncodeError):
        value = ending.value_json
    error = None
    if ending.exit_code != 0:
        code = "timeout" if ending.exit_code == TIMED_OUT and ending.message else "script_failed"
        error = Failure(message=ending.message or _complaint(stderr.text, ending.exit_code), code=code)
    return Ran(
        ok=error is None,
        result=value,
        error=error,
        exit_code=ending.exit_code,
        **_common(run, ending.duration_ms),
    )


def _complaint(stderr: str, code: int) -> str:
    """Why a script failed, if it said so."""
    found = [*_UNCAUGHT.finditer(stderr)]
    return stderr[found[-1].start() :].strip() if found else f"The script ended with exit code {code}"


def _refusal(refused: ScriptRefused) -> Failure:
    places = [
        Place(each.message, each.file, each.line, each.column, each.code)
        for each in refused.problems[:MOST_PROBLEMS]
    ]
    return Failure(message=refused.message, code=refused.code, problems=places)


def _finished(result: Result, run: Run) -> Ran:
    error = result.error
    failure = None
    if error is not None:
        where = "" if error.line is None else f" (line {error.line}, column {error.column})"
        name = f"{error.name}: " if error.name and error.name != "Error" else ""
        failure = Failure(
            message=f"{name}{error.message}{where}", code=error.code, line=error.line, column=error.column
        )
    return Ran(
        ok=result.ok,
        result=result.result,
        logs=result.logs,
        error=failure,
        truncated=result.logs_truncated,
        **_common(run, result.duration_ms),
    )
