"""`code.run`: runs JavaScript or TypeScript in the sandbox, with the parameter `input` as a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from hutch.kernel.execution import Execution
from hutch.protocols.rep.jsonrpc import TIMEOUT
from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed
from hutch.sandbox.runner.profile import profile_for
from hutch.session.inputs import encode_inputs
from hutch.session.run import RunHandle, log_listener
from hutch.text import did_you_mean

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import FlowNode
    from hutch.protocols.rep.runtime.context import RunContext, StepServices
    from hutch.session.run import Result
    from hutch.session.tools.provider import Provider

PROTOCOL = "rep"
DEFAULT_ENGINE = "quickjs"
# Errors that a retry cannot fix.
_PERMANENT_CODES = frozenset({"validation_error", "serialization_error"})


class CodeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    input: Any | UnsetType = UNSET
    engine: str = DEFAULT_ENGINE
    tools: list[str] = []
    """MCP servers whose tools the code may call."""


async def _run(call: Call) -> Any:
    params: CodeParams = call.params
    services = await call.context.step_services()
    inputs = None if params.input is UNSET else encode_inputs({"input": params.input})
    execution = Execution(
        code=params.code,
        profile=profile_for(params.engine),
        limits=services.kernel.limits({"timeout_ms": remaining_ms(call)}, clamp=True),
        inputs=inputs,
        owner=call.context.owner,
        protocol=PROTOCOL,
        label=f"{call.context.run_id}#{call.step_id}",
    )
    log = log_listener(lambda line: call.log("info", line))
    if params.tools:
        from hutch.protocols.rep.kinds.durable.stored_code import run_with_tools

        providers = await _tools(params.tools, call, services)
        execution = msgspec.structs.replace(execution, providers=providers)
        result = await run_with_tools(call, services, execution, log)
    else:
        result = await services.kernel.run(execution, RunHandle(listeners=[log]))
    if result.logs_truncated:
        call.log("warning", "the logs were truncated")
    if not result.ok:
        raise _failure(result)
    return result.result


async def _tools(names: list[str], call: Call, services: StepServices) -> list[Provider]:
    """Returns the tools of MCP servers. Raises StepFailed."""
    from hutch.protocols.toolscript.providers import tool_providers, unavailable_servers

    if "mcp.call" not in call.run.registry:
        message = "tools: this run may not call tools of MCP servers (its key needs the scope toolscript)"
        raise StepFailed(message, retriable=False)
    gateway = services.gateway()
    catalog = await gateway.catalog()
    known = [server.name for server in gateway.servers()]
    unavailable = unavailable_servers(gateway)
    for name in names:
        if name not in known:
            close = did_you_mean(name, known)
            hint = f"did you mean {close}?" if close else f"known servers: {', '.join(known) or 'none'}"
            raise StepFailed(f"tools: there is no MCP server {name[:100]!r}; {hint}", retriable=False)
        if name in unavailable:
            raise StepFailed(f"tools: the MCP server {name} is not connected: {unavailable[name]}")
    return tool_providers(catalog, gateway, names)


def remaining_ms(call: Call) -> float:
    """Returns the time left for the step, or the maximum if the step has no timeout."""
    seconds = call.seconds_left
    return call.context.services.settings.max_timeout_ms if seconds is None else max(1.0, seconds * 1000)


def _failure(result: Result) -> StepFailed:
    error = result.error
    assert error is not None
    details: dict[str, Any] = {"code": error.code, "run_id": result.run_id}
    where = ""
    if error.line is not None:
        where = f" (line {error.line}, column {error.column})"
        details |= {"line": error.line, "column": error.column}
    name = f"{error.name}: " if error.name and error.name != "Error" else ""
    retriable = error.code not in _PERMANENT_CODES and error.name != "SyntaxError"
    cause = TIMEOUT if error.code == "timeout" else None
    return StepFailed(f"{name}{error.message}{where}", retriable=retriable, details=details, cause=cause)


async def _start_runner(context: RunContext, node: FlowNode) -> None:
    """Starts a runner early, because starting the first runner takes as long as the rest of a short run."""
    kernel = (await context.step_services()).kernel
    if node.with_.get("engine", DEFAULT_ENGINE) == DEFAULT_ENGINE:
        kernel.prestart(profile_for(DEFAULT_ENGINE), only_first=True)


RUN = Kind("code.run", _run, params=CodeParams, warm_up=_start_runner)
