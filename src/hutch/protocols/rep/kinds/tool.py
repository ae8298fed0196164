"""`tool.execute`: runs a tool of an npm package, as the TPMJS protocol does."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.npm.package_spec import parse_spec, parse_spec_argument
from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed
from hutch.protocols.tpmjs.models import PackageToolCall, ToolFailure
from hutch.session.large_json import decode_large_value

_RETRIABLE = frozenset({"execution_error", "timeout", "internal"})


class ToolParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `tool.execute`. `env` never appears in events, logs or errors."""

    package: str
    name: str
    params: dict[str, Any] = {}
    version: str | None = None
    env: dict[str, str] = {}


class _LogConsole:
    """Turns the output of a tool into log events."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def log(self, line: str) -> None:
        self._call.log("info", line)

    def partial(self, json: bytes) -> None:
        """Ignores partial values, because the final output contains all of them."""


async def _execute(call: Call) -> Any:
    params: ToolParams = call.params
    exact = params.version is None and parse_spec_argument(params.package)
    spec = exact or parse_spec(params.package, params.version)
    tool_call = PackageToolCall(
        spec=spec, name=params.name, params=params.params, env=params.env, caller=call.context.owner
    )
    services = await call.context.step_services()
    outcome = await services.tools().execute(tool_call, _LogConsole(call))
    if outcome.failure is not None:
        raise _failure(outcome.failure)
    return None if outcome.output_json is None else await decode_large_value(outcome.output_json)


def _failure(failure: ToolFailure) -> StepFailed:
    return StepFailed(
        failure.message,
        retriable=failure.retryable or failure.code in _RETRIABLE,
        details={"code": failure.code},
    )


EXECUTE = Kind("tool.execute", _execute, params=ToolParams)
