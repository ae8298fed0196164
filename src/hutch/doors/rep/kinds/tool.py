"""`tool.execute`: a tool of an npm package, as the TPMJS door runs them."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed
from hutch.doors.tpmjs.calls import ToolCall, ToolFailure
from hutch.npm import names
from hutch.session.jsonvalue import decode_value

_RETRIABLE = frozenset({"execution_error", "timeout", "internal"})


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tool, with what. `env` is for this one call, and in no event, log or error."""

    package: str
    name: str
    params: dict[str, Any] = {}
    version: str | None = None
    env: dict[str, str] = {}


class _Console:
    """What a tool prints, as it comes."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def log(self, line: str) -> None:
        self._call.log("info", line)

    def partial(self, json: bytes) -> None:
        """Comes together in the output."""


async def _execute(call: Call) -> Any:
    params: Params = call.params
    named = params.version is None and names.parse_argument(params.package)
    spec = named or names.parse(params.package, params.version)
    wanted = ToolCall(
        spec=spec, name=params.name, params=params.params, env=params.env, caller=call.context.owner
    )
    app = await call.context.app()
    outcome = await app.tools.execute(wanted, _Console(call))
    if outcome.failure is not None:
        raise _failure(outcome.failure)
    return None if outcome.output_json is None else decode_value(outcome.output_json)


def _failure(failure: ToolFailure) -> StepFailed:
    return StepFailed(
        failure.message,
        retriable=failure.retryable or failure.code in _RETRIABLE,
        details={"code": failure.code},
    )


EXECUTE = Kind("tool.execute", _execute, params=Params)
