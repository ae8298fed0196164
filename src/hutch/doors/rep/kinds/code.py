"""`code.run`: JavaScript or TypeScript in the sandbox. What it is given is the variable `input`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from hutch.doors.rep.codes import TIMEOUT
from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed
from hutch.kernel import Execution
from hutch.sandbox.profile import profile_for
from hutch.session.jsonvalue import encode_value
from hutch.session.providers import Provider
from hutch.session.tools import Tool, ToolContext

if TYPE_CHECKING:
    from hutch.doors.rep.context import Context
    from hutch.doors.rep.flow import Node
    from hutch.kernel import Result
    from hutch.settings import Settings

# Source that is longer than this for its input is slow to read, and soon longer than source may be.
_MOST_INLINE = 64 * 1024
_FENCE = "```"
ENGINE = "quickjs"
# What no retry mends, unless the code itself is a matter of luck.
_LASTING = frozenset({"validation_error", "serialization_error"})


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to run, and on what."""

    code: str
    input: Any | UnsetType = UNSET
    engine: str = ENGINE


async def _run(call: Call) -> Any:
    params: Params = call.params
    app = await call.context.app()
    prefix, providers = _given(params.input)
    execution = Execution(
        code=_with_prefix(params.code, prefix),
        profile=profile_for(params.engine),
        limits=app.kernel.limits({"timeout_ms": milliseconds(call, app.settings)}, clamp=True),
        providers=providers,
        owner=call.context.owner,
        door="rep",
        label=f"{call.context.run_id}#{call.step_id}",
    )
    result = await app.kernel.run(execution)
    for line in result.logs:
        call.log("info", line)
    if result.logs_truncated:
        call.log("warning", "the logs were truncated")
    if not result.ok:
        raise _failure(result, len(prefix))
    return result.result


def milliseconds(call: Call, settings: Settings) -> float:
    """The time that is left for the step; without a bound of its own, the most there is."""
    left = call.seconds_left
    return settings.most_timeout_ms if left is None else max(1.0, left * 1000)


def _given(value: Any) -> tuple[str, list[Provider]]:
    """The declaration of the variable, on the first line, so that lines stay where they are."""
    if value is UNSET:
        return "", []
    text = _json(value)
    if len(text) <= _MOST_INLINE:
        return f"const input = JSON.parse({encode_value(text.decode()).decode()}); ", []

    async def give(_: Any, __: ToolContext) -> bytes:
        return text

    return "const input = await step.input({}); ", [Provider.of(Tool("input", give), name="step")]


def _json(value: Any) -> bytes:
    """Half as long, for most texts, as in ASCII, which lone surrogates need."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return encode_value(value)


def _with_prefix(code: str, prefix: str) -> str:
    """Before the code or, where that stands in a Markdown fence, before what is in it."""
    if not prefix or not code.lstrip().startswith(_FENCE):
        return prefix + code
    opening, newline, rest = code.partition("\n")
    while newline and _FENCE not in opening:
        more, newline, rest = rest.partition("\n")
        opening += f"\n{more}"
    return f"{opening}{newline}{prefix}{rest}"


def _failure(result: Result, shift: int) -> StepFailed:
    error = result.error
    assert error is not None
    details: dict[str, Any] = {"code": error.code, "run_id": result.run_id}
    where = ""
    if error.line is not None:
        column = error.column or 1
        column = max(1, column - shift) if error.line == 1 else column
        where = f" (line {error.line}, column {column})"
        details |= {"line": error.line, "column": column}
    name = f"{error.name}: " if error.name and error.name != "Error" else ""
    retriable = error.code not in _LASTING and error.name != "SyntaxError"
    cause = TIMEOUT if error.code == "timeout" else None
    return StepFailed(f"{name}{error.message}{where}", retriable=retriable, details=details, cause=cause)


async def _expect(context: Context, node: Node) -> None:
    """The first process takes as long to start as all else that a short run does."""
    app = await context.app()
    stats = app.pool.stats()
    if node.with_.get("engine", ENGINE) == ENGINE and not stats.processes and not stats.starting:
        app.pool.prepare(profile_for(ENGINE))


RUN = Kind("code.run", _run, params=Params, expect=_expect)
