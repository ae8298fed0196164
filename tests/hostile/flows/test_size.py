"""Flows that want all of the server's time, its memory and its places."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.doors.rep.boards import Board
from tests.doors.rep.stations import Caller, Station
from tests.flows import chain, edge, flow, node
from tests.hostile.flows.harm import PLACES, failed, tried
from tests.processes import PATIENCE

from hutch.doors.rep import allowance

pytestmark = pytest.mark.anyio

MONTH = 31 * 24 * 3600
SOON = 6.0
"""What a request may take that the server should see through at once, on a machine that does other things."""


SMALL = [node(f"s{at}", "wait", seconds=0) for at in range(3_000)]
COSTLY: dict[str, dict[str, Any]] = {
    "edges to nowhere": flow(SMALL, [edge(f"s{at % 3_000}", f"sx{at}") for at in range(50_000)]),
    "references to nowhere": flow([node(f"s{at}", "dsl.emit", a=f"$step.sx{at}.a") for at in range(3_000)]),
    "inputs to nowhere": flow(
        [node(f"s{at}", "dsl.emit", a=f"$input.sx{at}") for at in range(3_000)],
        inputs_schema={f"a{at}": {"type": "string"} for at in range(3_000)},
    ),
    "types": flow(SMALL[:1], inputs_schema={f"a{at}": {"type": f"strin{at}"} for at in range(30_000)}),
    "cycles": flow(
        SMALL,
        [
            *chain(*(each["id"] for each in SMALL)),
            *(edge(f"s{2_999 - at}", f"s{at}") for at in range(1_000)),
        ],
    ),
    "cases": flow(
        [node("d", "switch", key_from="$input.x", cases={str(at): f"no{at}" for at in range(5_000)}), *SMALL]
    ),
    "unknown keys": {**flow(SMALL[:1]), "constants": {f"policy{at}": 1 for at in range(50_000)}},
    "long names": flow([node("a" * 100_000, "wait", seconds=0), *SMALL], [edge("a" * 99_999, "s1")]),
    "too many": flow([node(f"s{at}", "wait", seconds=0) for at in range(10_001)]),
}


@pytest.mark.parametrize("name", COSTLY)
async def test_no_flow_takes_the_servers_time_by_being_wrong(eve: Caller, name: str) -> None:
    began = time.monotonic()
    answer = await eve.post("/flows", COSTLY[name])
    failed(answer, 400, "INVALID_REQUEST")
    assert time.monotonic() - began < SOON
    assert len(answer.content) < 200_000


async def test_others_are_served_while_a_large_flow_is_read(eve: Caller, bo: Caller) -> None:
    nodes = [node(f"s{at}", "wait", seconds=0) for at in range(10_000)]
    edges = [edge(f"s{at}", f"s{at + step}") for step in range(1, 8) for at in range(9_990)]
    large = asyncio.ensure_future(eve.post("/flows", flow(nodes, edges, name="large")))
    slowest = 0.0
    while not large.done():
        began = time.monotonic()
        assert (await bo.get("/flows")).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
    assert (await large).status_code == 201
    assert slowest < SOON


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
async def test_no_number_and_no_name_is_taken_that_cannot_be_used(eve: Caller, body: dict[str, Any]) -> None:
    await eve.post("/flows", flow([node("w", "wait", seconds=0)], name="short"))
    answer = await eve.call(
        "POST", "/flows/short/runs", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    failed(answer, 400, "INVALID_REQUEST")
    assert (await eve.got("/runs"))["runs"] == []


async def test_what_a_runtime_cannot_be_given_is_not_begun(eve: Caller, rid: str) -> None:
    big = flow([node("a", "dsl.emit", a="x" * 9_000_000)], name="big")
    assert (await eve.post("/flows", big)).status_code == 201
    answer = await eve.post("/flows/big/runs", {"run_id": rid, "inputs": {"a": "x" * 9_000_000}})
    failed(answer, 413, "PAYLOAD_TOO_LARGE")
    await eve.post("/flows", {**big, "flow": {"name": "big2", "timeout_ms": 0}})
    many = flow(
        [node(f"f{at}", "flow.run", flow=name, inputs={}) for at, name in enumerate(["big", "big2"])],
        name="many",
    )
    assert (await eve.post("/flows", many)).status_code == 201
    assert "MiB" in failed(await eve.post("/flows/many/runs", {"run_id": rid}), 400, "INVALID_REQUEST")


async def test_odd_numbers_and_long_words_end_a_run_and_nothing_else(eve: Caller, rid: str) -> None:
    """An event without what it should have made the server lose the run, again every two seconds."""
    long = flow([node("a", "approve", message="$input.m")], name="asks")
    await eve.begin(long, rid, inputs={"m": "x" * 100_000})
    run = await eve.ended(rid)
    assert "at most 10000" in run["summary"]["error"]["message"] or "10000" in json.dumps(
        run["summary"]["error"]
    )
    nodes = [
        node("month", "wait", seconds=1e9),
        node("never", "wait", seconds=-1),
        node("nan", "wait", seconds="$input.none"),
    ]
    await tried(eve, f"{rid}-2", nodes)


async def test_an_output_is_not_handed_on_a_thousand_times(eve: Caller, rid: str) -> None:
    """8 GB, if it were."""
    nodes = [
        node("big", "dsl.emit", v="$input.big"),
        node("more", "dsl.emit", v=["$step.big"] * 2_000),
        node("body", "http.request", method="POST", url="https://example.com", body=["$step.big"] * 2_000),
    ]
    ends = [node(f"{id}-why", "dsl.emit", e=f"$step.{id}.error") for id in ("more", "body")]
    edges = [edge("big", "more"), edge("big", "body"), edge("more", "more-why", on="failure")]
    edges.append(edge("body", "body-why", on="failure"))
    began = time.monotonic()
    await eve.begin(flow([*nodes, *ends], edges, name="doubles"), rid, inputs={"big": "x" * 4_000_000})
    outputs = (await eve.ended(rid))["summary"]["outputs"]
    assert all("32 MiB" in outputs[f"{id}-why"]["e"]["message"] for id in ("more", "body"))
    assert time.monotonic() - began < PATIENCE / 2


async def test_retries_without_end_come_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MOST_BYTES", 200_000)
    board = Board()
    run = board.flow_run(flow([node("a", "fail", retries=2**31 - 1, times=2**31)]))
    run.emit = lambda type, **fields: run.context.allowance.take(len(json.dumps(fields)))
    async with asyncio.timeout(PATIENCE):
        summary = await run.run()
    assert summary.error is not None
    assert "which is the most" in summary.error["message"]
    assert 100 < board.attempts["a"] < 10_000


async def test_outputs_without_end_come_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MOST_BYTES", 100_000)
    ids = [f"s{at}" for at in range(50)]
    ended = await Board().run(flow([node(id, "dsl.emit", v="x" * 5_000) for id in ids], chain(*ids)))
    assert "which is the most" in ended.error["message"]
    assert 10 < ended.summary["completed_steps"] < 25


async def test_flows_within_flows_have_so_many_steps_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty in twenty in twenty, seven levels: a thousand million."""
    monkeypatch.setattr(allowance, "MOST_STEPS", 2_000)
    inner = flow([node("w", "wait", seconds=0)], name="l0")
    kept = {"l0": inner}
    for level in range(1, 7):
        steps = [node(f"f{at}", "flow.run", flow=f"l{level - 1}", inputs={}) for at in range(20)]
        kept[f"l{level}"] = flow(steps, name=f"l{level}")
    began = time.monotonic()
    ended = await Board().run(kept["l6"], flows=kept)
    assert "which is the most" in ended.error["message"]
    assert time.monotonic() - began < PATIENCE / 2
    # Itself in itself.
    kept["self"] = flow([node("f", "flow.run", flow="self", inputs={})], name="self")
    assert "levels deep" in (await Board().run(kept["self"], flows=kept)).error["message"]


async def test_one_user_does_not_have_all_places(eve: Caller, bo: Caller, operator: Caller, rid: str) -> None:
    """With waits of a month, and then with as many that wait for those as the server lets her."""
    await eve.post("/flows", flow([node("w", "wait", seconds=MONTH - 1)], name="month"))
    answers = [await eve.post("/flows/month/runs", {"run_id": f"{rid}-{at}"}) for at in range(30)]
    taken = [answer for answer in answers if answer.status_code == 202]
    assert PLACES < len(taken) <= 11
    assert "of yours" in failed(answers[-1], 503, "BUSY")
    short = flow([node("w", "wait", seconds=0)], name="short")
    async with asyncio.timeout(PATIENCE / 2):
        await bo.begin(short, f"{rid}-bo")
        assert (await bo.ended(f"{rid}-bo"))["status"] == "completed"


async def test_who_never_reads_events_is_waited_for_by_nobody(
    place: Station, operator: Caller, rid: str
) -> None:
    eve = await place.user(operator, f"eve-{rid}", ("rep", "execbox"))
    code = "for (let at = 0; at < 60; at++) console.log('x'.repeat(60000))"
    await eve.begin(flow([node(f"c{at}", "code.run", code=code) for at in range(3)], name="floods"), rid)
    url = urlsplit(operator.server.url)
    key = eve.headers["Authorization"]
    head = f"GET /runs/{rid}/events HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: {key}\r\n\r\n"
    idle = []
    try:
        for _ in range(40):
            idle.append(socket.create_connection((url.hostname, url.port), timeout=PATIENCE))
            idle[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle[-1].sendall(head.encode())
        assert (await eve.ended(rid))["status"] == "completed"
        began = time.monotonic()
        assert (await eve.get("/flows")).status_code == 200
        assert time.monotonic() - began < SOON
    finally:
        for each in idle:
            each.close()
