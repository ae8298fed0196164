"""StartRun (5.2) and what it has to refuse (6)."""

from __future__ import annotations

import json
from typing import Any

from hutch.doors.rep.checks.outcome import Check, Failed
from hutch.doors.rep.checks.subject import Subject, document, node
from hutch.doors.rep.codes import INVALID_IR, UNSUPPORTED_KIND, UNSUPPORTED_VERSION, RpcError

_EDGE = {"from": "a", "to": "b", "on": "success"}
_BACK = {"from": "b", "to": "a", "on": "success"}


async def _refuses(on: Subject, ir: Any, code: int) -> RpcError:
    talk = await on.talk()
    options = {"run_id": on.new_id(), "trace_id": "check", "allow_shell": False}
    error = await talk.refusal("StartRun", ir=ir, inputs={}, options=options)
    if error.code != code:
        raise Failed(f"expected the code {code}, got {error.code}: {error.message}")
    await talk.still_answers()
    return error


async def refuses_another_version(on: Subject) -> None:
    await _refuses(on, {**on.completing(), "version": "2.0.0"}, UNSUPPORTED_VERSION)


async def refuses_an_unknown_kind(on: Subject) -> None:
    await _refuses(on, document([node("a", "no.such.kind")]), UNSUPPORTED_KIND)


async def refuses_no_graph(on: Subject) -> None:
    ir = on.completing()
    await _refuses(on, {name: ir[name] for name in ir if name != "graph"}, INVALID_IR)


async def tells_of_refusals(on: Subject) -> None:
    error = await _refuses(on, {**on.completing(), "version": "2.0.0"}, UNSUPPORTED_VERSION)
    data = error.data
    if not isinstance(data, dict):
        raise Failed(f"data: expected an object, got {json.dumps(data)[:80]}")
    missing = [name for name in ("step_id", "attempt", "retriable", "details") if name not in data]
    if missing:
        raise Failed(
            f"data: expected step_id, attempt, retriable and details; there is no {', '.join(missing)}"
        )
    if data["retriable"] is not False:
        raise Failed("data.retriable: expected false: validation is not retried")


async def refuses_cycles(on: Subject) -> None:
    pair = [node("a", _some(on)), node("b", _some(on))]
    await _refuses(on, document(pair, [_EDGE, _BACK]), INVALID_IR)


async def refuses_same_ids(on: Subject) -> None:
    await _refuses(on, document([node("a", _some(on)), node("a", _some(on))]), INVALID_IR)


async def refuses_dangling_edges(on: Subject) -> None:
    await _refuses(on, document([node("a", _some(on))], [_EDGE]), INVALID_IR)


def _some(on: Subject) -> str:
    """A kind that it has, so that this is not what is wrong."""
    kind: str = on.completing()["graph"]["nodes"][0]["type"]
    return kind


async def keeps_the_id(on: Subject) -> None:
    talk = await on.talk()
    asked = on.new_id()
    given = await on.start(talk, on.completing(), asked)
    if given != asked:
        raise Failed(f"expected the run_id {asked!r}, got {given!r}")


async def makes_an_id(on: Subject) -> None:
    talk = await on.talk()
    one, other = [await on.start(talk, on.completing(), None) for _ in range(2)]
    if one == other:
        raise Failed(f"expected a run_id for each run, got {one!r} twice")


async def starts_once(on: Subject) -> None:
    talk = await on.talk()
    seen = await on.completed(talk)
    await on.start(talk, on.completing(), seen.run_id)
    again = await on.to_the_end(talk, seen.run_id)
    if again.events:
        raise Failed(f"expected the run that is over, but it ran again: {json.dumps(again.events)[:80]}")


CHECKS = (
    Check("another version of Flow IR is refused with 1001", "5.2", True, refuses_another_version),
    Check("a step of an unknown kind is refused with 1002", "6", True, refuses_an_unknown_kind),
    Check("Flow IR without a graph is refused with 1003", "6", True, refuses_no_graph),
    Check("refusals carry step_id, attempt, retriable and details", "6", False, tells_of_refusals),
    Check("a cycle is refused with 1003", "6", False, refuses_cycles),
    Check("two steps of one id are refused with 1003", "6", False, refuses_same_ids),
    Check("an edge to no step is refused with 1003", "6", False, refuses_dangling_edges),
    Check("a run has the id that it was given", "5.2", True, keeps_the_id),
    Check("a run that was given no id gets one", "5.2", False, makes_an_id),
    Check("the same run_id twice is one run", "5.2", False, starts_once),
)
