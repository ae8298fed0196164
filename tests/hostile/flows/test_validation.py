"""Flows and requests that are expensive to validate do not delay other users."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest
from tests.hostile.flows.helpers import assert_error
from tests.protocols.rep.flow_server import FlowClient
from tests.support.flows import chain, edge, flow, node
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.stalls import ServerStalls, repeat_on_stall

pytestmark = pytest.mark.anyio

MAX_RESPONSE_BYTES = 200_000
UNKNOWN_FIELDS = {f"unknown{number}": None for number in range(50_000)}
MANY = 3_000

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "too many fields": ("/flows", dict.fromkeys(map(str, range(105_000))), "has more than 100000 values"),
    "unknown fields of a flow": ("/flows", UNKNOWN_FIELDS, "flow: is missing"),
    "unknown fields of a section": (
        "/flows",
        {**flow([node("a", "wait", seconds=0)]), "constants": UNKNOWN_FIELDS},
        "constants.unknown0: is not known",
    ),
    "unknown fields of a start": ("/flows/short/runs", UNKNOWN_FIELDS, "unknown field"),
    "unknown fields of an approval": ("/runs/none/approvals/a", UNKNOWN_FIELDS, "unknown field"),
    "steps without fields": ("/flows", {**flow([]), "graph": {"nodes": [{}] * MANY}}, "is missing"),
    "steps that are no objects": ("/flows", {**flow([]), "graph": {"nodes": [1] * 9_000}}, "expected"),
    "long names": (
        "/flows",
        {**flow([]), "flow": {"x" * 300_000 + str(at): 1 for at in range(5)}},
        "known",
    ),
    "edges to unknown steps": (
        "/flows",
        flow([node("a", "wait", seconds=0)], [edge("a", f"b{number}") for number in range(MANY)]),
        "there is no step",
    ),
    "long references": (
        "/flows",
        flow([node(f"s{at}", "dsl.emit", v="$step" + ".a" * 30_000) for at in range(20)]),
        "expected at most 2000 characters",
    ),
    "references of many segments": (
        "/flows",
        flow([node(f"s{at}", "dsl.emit", v=f"$step.s{at}" + ".a" * 500) for at in range(1_500)]),
        "has more than 100 keys and indexes",
    ),
    "cases": (
        "/flows",
        flow([node("d", "switch", key_from="$input.x", cases={str(at): "d" for at in range(MANY)})]),
        "expected at most 1000 cases, got 3000",
    ),
    "nested flows": ("/flows", {}, "expected at most 8 levels of nested flows"),
    "long types": (
        "/flows",
        flow([node("a", "wait", seconds=0)], inputs_schema={"a": "map<" * 300_000}),
        "expected at most 500 characters",
    ),
}


def nested(levels: int) -> dict[str, Any]:
    inner = flow([node("a", "wait", seconds=0)])
    for _ in range(levels):
        inner = flow([node("a", "flow.run", flow=inner, inputs={})])
    return inner


@pytest.mark.parametrize("name", REFUSED)
@repeat_on_stall
async def test_refusal_is_short_and_does_not_stall_the_server(
    eve: FlowClient, operator: FlowClient, name: str
) -> None:
    path, body, expected = REFUSED[name]
    assert (await eve.post("/flows", flow([node("w", "wait", seconds=0)], name="short"))).status_code == 201
    with ServerStalls(operator.server.process.pid, operator.server.url) as stalls:
        answer = await eve.post(path, body or nested(9))
    message = assert_error(answer, 400, "INVALID_REQUEST")
    assert expected in message
    assert len(answer.content) < MAX_RESPONSE_BYTES
    stalls.assert_short()


def switches(count: int, cases: int) -> dict[str, Any]:
    """Returns a flow of switches with many cases, each of which has its own edge."""
    nodes = [
        node(f"d{at}", "switch", key_from="$input.x", cases={f"c{case}": "end" for case in range(cases)})
        for at in range(count)
    ]
    edges = [edge(f"d{at}", "end", case=f"c{case}") for at in range(count) for case in range(cases)]
    return flow([*nodes, node("end", "finish")], edges, name="switches")


def references(count: int) -> dict[str, Any]:
    """Returns a flow whose steps contain many references of the maximum length."""
    path = ".abcdefghijklmno" * 99
    nodes = [node(f"s{at}", "dsl.emit", v=[f"$step.s0{path}{'xyz' * 3}"] * 10) for at in range(count)]
    nodes[0] = node("s0", "dsl.emit")
    return flow(nodes, chain(*(f"s{at}" for at in range(count))), name="references")


@pytest.mark.parametrize("body", [switches(4, 1_000), references(50)], ids=["switches", "references"])
@repeat_on_stall
async def test_other_users_flow_does_not_wait_for_a_large_one(
    eve: FlowClient, bo: FlowClient, operator: FlowClient, body: dict[str, Any]
) -> None:
    small = flow([node("w", "wait", seconds=0)], name="small")
    with ServerStalls(operator.server.process.pid, operator.server.url) as stalls:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            large = [asyncio.create_task(eve.post("/flows", body)) for _ in range(8)]
            await asyncio.wait(large, return_when=asyncio.FIRST_COMPLETED)
            began = time.monotonic()
            assert (await bo.post("/flows", small)).status_code in (200, 201)
            waited = time.monotonic() - began
            assert {answer.status_code for answer in await asyncio.gather(*large)} <= {200, 201}
    assert waited < 5
    stalls.assert_short()


@repeat_on_stall
async def test_outputs_with_millions_of_values_do_not_stall_the_server(
    eve: FlowClient, operator: FlowClient
) -> None:
    """The server stores and sends outputs without decoding them, so such outputs do not stall it."""
    rid = f"lists-{uuid.uuid4()}"
    nodes = [node("end", "finish", outputs=["$input.lists"] * 20)]
    lists: list[Any] = [[]] * 45_000
    with ServerStalls(operator.server.process.pid, operator.server.url) as stalls:
        await eve.start_run(flow(nodes, name="lists"), rid, inputs={"lists": lists})
        events = await eve.get(f"/runs/{rid}/events")
        shown = await eve.get(f"/runs/{rid}")
    assert shown.json()["summary"]["outputs"] == [lists] * 20
    assert shown.json()["inputs"] == {"lists": lists}
    assert f'"outputs":{"[" * 3}' in events.text
    stalls.assert_short()
