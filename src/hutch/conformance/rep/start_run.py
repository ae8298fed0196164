"""Checks of `Runtime.StartRun` (5.2) and of the errors it must return (6)."""

from __future__ import annotations

import json
from typing import Any

from hutch.conformance.outcome import Check, CheckFailed
from hutch.conformance.rep.target import RuntimeTarget, flow_document, flow_node
from hutch.protocols.rep.jsonrpc import INVALID_IR, UNSUPPORTED_KIND, UNSUPPORTED_VERSION, RpcError

_EDGE = {"from": "a", "to": "b", "on": "success"}
_EDGE_BACK = {"from": "b", "to": "a", "on": "success"}


async def _refuses(target: RuntimeTarget, ir: Any, code: int) -> RpcError:
    connection = await target.connect()
    options = {"run_id": target.new_id(), "trace_id": "check", "allow_shell": False}
    error = await connection.error("StartRun", ir=ir, inputs={}, options=options)
    if error.code != code:
        raise CheckFailed(f"expected the code {code}, got {error.code}: {error.message}")
    await connection.expect_alive()
    return error


async def refuses_another_version(target: RuntimeTarget) -> None:
    await _refuses(target, {**target.completing_flow(), "version": "2.0.0"}, UNSUPPORTED_VERSION)


async def refuses_an_unknown_kind(target: RuntimeTarget) -> None:
    await _refuses(target, flow_document([flow_node("a", "no.such.kind")]), UNSUPPORTED_KIND)


async def refuses_no_graph(target: RuntimeTarget) -> None:
    ir = target.completing_flow()
    await _refuses(target, {name: ir[name] for name in ir if name != "graph"}, INVALID_IR)


async def refusals_have_details(target: RuntimeTarget) -> None:
    error = await _refuses(target, {**target.completing_flow(), "version": "2.0.0"}, UNSUPPORTED_VERSION)
    data = error.data
    if not isinstance(data, dict):
        raise CheckFailed(f"data: expected an object, got {json.dumps(data)[:80]}")
    missing = [name for name in ("step_id", "attempt", "retriable", "details") if name not in data]
    if missing:
        raise CheckFailed(
            f"data: expected step_id, attempt, retriable and details; missing: {', '.join(missing)}"
        )
    if data["retriable"] is not False:
        raise CheckFailed("data.retriable: expected false: validation is not retried")


async def refuses_cycles(target: RuntimeTarget) -> None:
    pair = [flow_node("a", _supported_kind(target)), flow_node("b", _supported_kind(target))]
    await _refuses(target, flow_document(pair, [_EDGE, _EDGE_BACK]), INVALID_IR)


async def refuses_same_ids(target: RuntimeTarget) -> None:
    await _refuses(
        target,
        flow_document([flow_node("a", _supported_kind(target)), flow_node("a", _supported_kind(target))]),
        INVALID_IR,
    )


async def refuses_dangling_edges(target: RuntimeTarget) -> None:
    await _refuses(target, flow_document([flow_node("a", _supported_kind(target))], [_EDGE]), INVALID_IR)


def _supported_kind(target: RuntimeTarget) -> str:
    """Returns a step kind that the runtime supports, so that the runtime can refuse the flow only because of
    its graph.
    """
    kind: str = target.completing_flow()["graph"]["nodes"][0]["type"]
    return kind


async def keeps_the_id(target: RuntimeTarget) -> None:
    connection = await target.connect()
    requested = target.new_id()
    actual = await target.start(connection, target.completing_flow(), requested)
    if actual != requested:
        raise CheckFailed(f"expected the run_id {requested!r}, got {actual!r}")


async def makes_an_id(target: RuntimeTarget) -> None:
    connection = await target.connect()
    first, second = [await target.start(connection, target.completing_flow(), None) for _ in range(2)]
    if first == second:
        raise CheckFailed(f"expected a run_id for each run, got {first!r} twice")


async def starts_once(target: RuntimeTarget) -> None:
    connection = await target.connect()
    run = await target.run_completing(connection)
    await target.start(connection, target.completing_flow(), run.run_id)
    repeated = await target.wait_finished(connection, run.run_id)
    if repeated.events:
        raise CheckFailed(f"expected the finished run, but it ran again: {json.dumps(repeated.events)[:80]}")


CHECKS = (
    Check("another version of Flow IR is refused with 1001", refuses_another_version, "5.2"),
    Check("a step of an unknown kind is refused with 1002", refuses_an_unknown_kind, "6"),
    Check("Flow IR without a graph is refused with 1003", refuses_no_graph, "6"),
    Check(
        "refusals carry step_id, attempt, retriable and details", refusals_have_details, "6", required=False
    ),
    Check("a cycle is refused with 1003", refuses_cycles, "6", required=False),
    Check("two steps with the same id are refused with 1003", refuses_same_ids, "6", required=False),
    Check("an edge to a missing step is refused with 1003", refuses_dangling_edges, "6", required=False),
    Check("a run has the requested id", keeps_the_id, "5.2"),
    Check("a run without a requested id gets one", makes_an_id, "5.2", required=False),
    Check("the same run_id twice is one run", starts_once, "5.2", required=False),
)
