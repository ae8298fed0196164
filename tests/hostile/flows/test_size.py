"""Flows that try to use up the server's time, memory and slots."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.hostile.flows.helpers import MAX_FLOWS, assert_error, run_attempts
from tests.protocols.rep.flow_harness import FlowHarness
from tests.protocols.rep.flow_server import FlowClient, FlowServer
from tests.support.flows import chain, edge, flow, node
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.stalls import ServerStalls, repeat_on_stall

from hutch.protocols.rep.runtime import context

pytestmark = pytest.mark.anyio

MONTH = 31 * 24 * 3600
QUICK_SECONDS = 6.0
"""Time limit for requests that should be quick, on a busy machine."""


SMALL = [node(f"s{at}", "wait", seconds=0) for at in range(3_000)]
COSTLY: dict[str, Callable[[], dict[str, Any]]] = {
    "edges to unknown steps": lambda: flow(
        SMALL, [edge(f"s{at % 3_000}", f"sx{at}") for at in range(15_000)]
    ),
    "references to unknown steps": lambda: flow(
        [node(f"s{at}", "dsl.emit", a=f"$step.sx{at}.a") for at in range(3_000)]
    ),
    "unknown inputs": lambda: flow(
        [node(f"s{at}", "dsl.emit", a=f"$input.sx{at}") for at in range(3_000)],
        inputs_schema={f"a{at}": {"type": "string"} for at in range(3_000)},
    ),
    "types": lambda: flow(
        SMALL[:1], inputs_schema={f"a{at}": {"type": f"strin{at}"} for at in range(30_000)}
    ),
    "cycles": lambda: flow(
        SMALL,
        [
            *chain(*(each["id"] for each in SMALL)),
            *(edge(f"s{2_999 - at}", f"s{at}") for at in range(1_000)),
        ],
    ),
    "cases": lambda: flow(
        [node("d", "switch", key_from="$input.x", cases={str(at): f"no{at}" for at in range(5_000)}), *SMALL]
    ),
    "unknown keys": lambda: {**flow(SMALL[:1]), "constants": {f"policy{at}": 1 for at in range(50_000)}},
    "long names": lambda: flow([node("a" * 100_000, "wait", seconds=0), *SMALL], [edge("a" * 99_999, "s1")]),
    "too many": lambda: flow([node(f"s{at}", "wait", seconds=0) for at in range(10_001)]),
}


@pytest.mark.parametrize("name", COSTLY)
async def test_invalid_flow_is_rejected_quickly(eve: FlowClient, name: str) -> None:
    began = time.monotonic()
    answer = await eve.post("/flows", COSTLY[name]())
    assert_error(answer, 400, "INVALID_REQUEST")
    assert time.monotonic() - began < QUICK_SECONDS
    assert len(answer.content) < 200_000


async def test_large_flow_does_not_block_other_requests(eve: FlowClient, bo: FlowClient) -> None:
    nodes = [node(f"s{at}", "wait", seconds=0) for at in range(8_000)]
    edges = [edge(f"s{at}", f"s{at + 1}") for at in range(5_000)]
    large = asyncio.ensure_future(eve.post("/flows", flow(nodes, edges, name="large")))
    slowest = 0.0
    while not large.done():
        began = time.monotonic()
        assert (await bo.get("/flows")).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
    assert (await large).status_code == 201
    assert slowest < QUICK_SECONDS


@pytest.mark.parametrize(
    "body",
    [
        {"timeout": int("9" * 400)},
        {"timeout": 1e300},
        {"timeout": -1},
        {"concurrency": 2**63},
        {"version": 2**63},
        {"run_id": "a\nb"},
        {"run_id": "a\0b"},
        {"run_id": "x" * 1_000},
    ],
    ids=["digits", "long", "negative", "concurrency", "version", "lines", "nul", "name"],
)
async def test_out_of_range_numbers_and_names_are_rejected(eve: FlowClient, body: dict[str, Any]) -> None:
    await eve.post("/flows", flow([node("w", "wait", seconds=0)], name="short"))
    answer = await eve.call(
        "POST", "/flows/short/runs", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert_error(answer, 400, "INVALID_REQUEST")
    assert (await eve.get_json("/runs"))["runs"] == []


async def test_run_too_large_for_a_runtime_is_not_started(eve: FlowClient, rid: str) -> None:
    big = flow([node("a", "dsl.emit", a="x" * 1_900_000)], name="big0")
    for number in range(5):
        name = {"name": f"big{number}", "timeout_ms": 0}
        assert (await eve.post("/flows", {**big, "flow": name})).status_code == 201
    steps = [node(f"f{at}", "flow.run", flow=f"big{at}", inputs={}) for at in range(5)]
    await eve.post("/flows", flow(steps[:4], name="four"))
    answer = await eve.post("/flows/four/runs", {"run_id": rid, "inputs": {"a": "x" * 9_500_000}})
    assert_error(answer, 413, "PAYLOAD_TOO_LARGE")
    await eve.post("/flows", flow(steps, name="five"))
    assert "MiB" in assert_error(await eve.post("/flows/five/runs", {"run_id": rid}), 400, "INVALID_REQUEST")
    wide = [node("a", "dsl.emit", v=[0] * 85_000)]
    await eve.post("/flows", flow(wide, name="wide"))
    await eve.post("/flows", flow([*wide, node("f", "flow.run", flow="wide", inputs={})], name="wider"))
    answer = await eve.post("/flows/wider/runs", {"run_id": rid, "inputs": {"v": [0] * 90_000}})
    assert "more than 249000 values" in assert_error(answer, 413, "PAYLOAD_TOO_LARGE")
    larger = flow([node("a", "dsl.emit", a="x" * 2_100_000)], name="larger")
    assert_error(await eve.post("/flows", larger), 413, "PAYLOAD_TOO_LARGE")


async def test_odd_numbers_and_long_messages_only_end_their_run(eve: FlowClient, rid: str) -> None:
    """Regression: because of an event with missing fields, the server lost the run every two seconds."""
    long = flow([node("a", "approve", message="$input.m")], name="asks")
    await eve.start_run(long, rid, inputs={"m": "x" * 100_000})
    run = await eve.wait_for_end(rid)
    assert "at most 10000" in run["summary"]["error"]["message"] or "10000" in json.dumps(
        run["summary"]["error"]
    )
    nodes = [
        node("month", "wait", seconds=1e9),
        node("never", "wait", seconds=-1),
        node("nan", "wait", seconds="$input.none"),
    ]
    await run_attempts(eve, f"{rid}-2", nodes)


async def test_repeated_references_to_a_large_output_are_bounded(eve: FlowClient, rid: str) -> None:
    """The steps refer 2 000 times to one large output. Without a bound, the values of these references would
    take 8 GB.
    """
    nodes = [
        node("big", "dsl.emit", v="$input.big"),
        node("more", "dsl.emit", v=["$step.big"] * 2_000),
        node("body", "http.request", method="POST", url="https://example.com", body=["$step.big"] * 2_000),
    ]
    ends = [node(f"{id}-why", "dsl.emit", e=f"$step.{id}.error") for id in ("more", "body")]
    edges = [edge("big", "more"), edge("big", "body"), edge("more", "more-why", on="failure")]
    edges.append(edge("body", "body-why", on="failure"))
    began = time.monotonic()
    await eve.start_run(flow([*nodes, *ends], edges, name="doubles"), rid, inputs={"big": "x" * 4_000_000})
    outputs = (await eve.wait_for_end(rid))["summary"]["outputs"]
    assert all("32 MiB" in outputs[f"{id}-why"]["e"]["message"] for id in ("more", "body"))
    assert time.monotonic() - began < TIMEOUT_SECONDS / 2


async def test_endless_retries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_RUN_BYTES", 200_000)
    harness = FlowHarness()
    run = harness.flow_run(flow([node("a", "fail", retries=2**31 - 1, times=2**31)]))
    run.emit = lambda type, **fields: run.context.quota.use_bytes(len(json.dumps(fields)))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        summary = await run.run()
    assert summary.error is not None
    assert "outputs and events of this run exceed" in summary.error["message"]
    assert 100 < harness.attempts["a"] < 10_000


async def test_outputs_of_a_run_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_RUN_BYTES", 100_000)
    ids = [f"s{at}" for at in range(50)]
    ended = await FlowHarness().run(flow([node(id, "dsl.emit", v="x" * 5_000) for id in ids], chain(*ids)))
    assert "outputs and events of this run exceed" in ended.error["message"]
    assert 10 < ended.summary["completed_steps"] < 25


async def test_steps_of_nested_flows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, seven levels of 20 flows each would be more than a billion steps."""
    monkeypatch.setattr(context, "MAX_NESTED_STEPS", 2_000)
    inner = flow([node("w", "wait", seconds=0)], name="l0")
    flows = {"l0": inner}
    for level in range(1, 7):
        steps = [node(f"f{at}", "flow.run", flow=f"l{level - 1}", inputs={}) for at in range(20)]
        flows[f"l{level}"] = flow(steps, name=f"l{level}")
    began = time.monotonic()
    ended = await FlowHarness().run(flows["l6"], flows=flows)
    assert "sub-flows of this run have more than 2000 steps" in ended.error["message"]
    assert time.monotonic() - began < TIMEOUT_SECONDS / 2
    # The depth of a recursive flow is bounded, too.
    flows["self"] = flow([node("f", "flow.run", flow="self", inputs={})], name="self")
    assert "levels deep" in (await FlowHarness().run(flows["self"], flows=flows)).error["message"]


@repeat_on_stall
async def test_loop_over_ten_thousand_items_does_not_block_others(
    eve: FlowClient, bo: FlowClient, operator: FlowClient, rid: str
) -> None:
    """The process of the run executes the items, but the server records each item."""
    emit = {"type": "dsl.emit", "with": {"v": "$item"}}
    loop = node("loop", "for_each", items=list(range(10_000)), step=emit, max_parallel=32)
    run_id = f"{rid}-{uuid.uuid4()}"
    with ServerStalls(operator.server.process.pid, operator.server.url) as stalls:
        await eve.start_run(flow([loop], name="loop"), run_id)
        await bo.start_run(flow([node("w", "wait", seconds=0)], name="short"), f"{run_id}-bo")
        async with asyncio.timeout(TIMEOUT_SECONDS / 2):
            assert (await bo.wait_for_end(f"{run_id}-bo"))["status"] == "completed"
        await eve.post(f"/runs/{run_id}/cancel", {})
        await eve.wait_for_end(run_id)
    stalls.assert_short()


async def test_one_user_cannot_use_all_slots(
    eve: FlowClient, bo: FlowClient, operator: FlowClient, rid: str
) -> None:
    """The user starts runs that wait for a month, and queues as many runs as the server accepts."""
    await eve.post("/flows", flow([node("w", "wait", seconds=MONTH - 1)], name="month"))
    answers = [await eve.post("/flows/month/runs", {"run_id": f"{rid}-{at}"}) for at in range(30)]
    taken = [answer for answer in answers if answer.status_code == 202]
    assert MAX_FLOWS < len(taken) <= 11
    assert "Too many of your flow runs" in assert_error(answers[-1], 503, "BUSY")
    short = flow([node("w", "wait", seconds=0)], name="short")
    async with asyncio.timeout(TIMEOUT_SECONDS / 2):
        await bo.start_run(short, f"{rid}-bo")
        assert (await bo.wait_for_end(f"{rid}-bo"))["status"] == "completed"


async def test_clients_that_never_read_events_block_nothing(
    server: FlowServer, operator: FlowClient, rid: str
) -> None:
    eve = await server.user(operator, f"eve-{rid}", ("rep", "execbox"))
    code = "for (let at = 0; at < 60; at++) console.log('x'.repeat(60000))"
    await eve.start_run(flow([node(f"c{at}", "code.run", code=code) for at in range(3)], name="floods"), rid)
    url = urlsplit(operator.server.url)
    key = eve.headers["Authorization"]
    head = f"GET /runs/{rid}/events HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: {key}\r\n\r\n"
    idle = []
    try:
        for _ in range(40):
            idle.append(socket.create_connection((url.hostname, url.port), timeout=TIMEOUT_SECONDS))
            idle[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle[-1].sendall(head.encode())
        assert (await eve.wait_for_end(rid))["status"] == "completed"
        began = time.monotonic()
        assert (await eve.get("/flows")).status_code == 200
        assert time.monotonic() - began < QUICK_SECONDS
    finally:
        for each in idle:
            each.close()
