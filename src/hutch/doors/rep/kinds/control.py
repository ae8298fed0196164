"""Steps that direct a flow or say what it gives, and do nothing else: `switch`, `finish`, `dsl.emit`."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed
from hutch.doors.rep.switches import DEFAULT, case_name, case_of, chosen


class Switch(msgspec.Struct, frozen=True):
    """Which step comes next."""

    key_from: Any
    """The value itself, by now."""
    cases: dict[str, str] = {}
    default: str | None = None


async def _switch(call: Call) -> Any:
    """Which edges that are is found out again from the value, also when the run is gone on with."""
    params: Switch = call.params
    edges = call.flow.outgoing(call.node.id)
    cases = {*params.cases, *(edge.case for edge in edges if edge.case is not None)}
    case = case_of(params.key_from, cases, params.default)
    if case is None and params.default is None:
        shown = (case_name(params.key_from) or "")[:100]
        known = ", ".join(sorted(cases)) or "none"
        message = f"There is no case for {shown!r}, and no default; the cases are {known}."
        raise StepFailed(message, retriable=False)
    follow = [edge.target for edge in chosen(call.flow, call.node, params.key_from)]
    return {"value": params.key_from, "case": DEFAULT if case is None else case, "next": follow}


class Finish(msgspec.Struct, frozen=True):
    """The end."""

    outputs: Any = None


async def _finish(call: Call) -> Any:
    params: Finish = call.params
    return params.outputs


async def _emit(call: Call) -> Any:
    call.log("info", msgspec.json.encode(call.params).decode())
    return call.params


SWITCH = Kind("switch", _switch, params=Switch, waits=True)
FINISH = Kind("finish", _finish, params=Finish, waits=True)
EMIT = Kind("dsl.emit", _emit, waits=True)
