"""Flows on a real server: kept, run and looked at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.doors.rep.server.answers import LONG, WAIT, failed
from tests.doors.rep.stations import ALL, Caller, Station
from tests.flows import chain, edge, flow, node
from tests.processes import PATIENCE
from tests.store.made import a_run

# --- flows ---


async def test_flow_is_kept_with_versions_and_given_back(ann: Caller) -> None:
    first = await ann.post("/flows", WAIT)
    assert (first.status_code, first.json()["version"]) == (201, 1)
    assert first.headers["location"] == "/flows/short"
    assert (await ann.post("/flows", WAIT)).status_code == 200
    changed = flow([node("w", "wait", seconds=0.01)], name="short")
    assert (await ann.post("/flows", changed)).json()["version"] == 2
    assert (await ann.got("/flows/short"))["document"] == changed
    assert (await ann.got("/flows/short?version=1"))["document"] == WAIT
    failed(await ann.get("/flows/short?version=3"), 404, "NOT_FOUND")
    await ann.post("/flows", LONG)
    assert [each["name"] for each in (await ann.got("/flows"))["flows"]] == ["long", "short"]
    page = await ann.got("/flows?limit=1")
    assert ([each["name"] for each in page["flows"]], page["next"]) == (["long"], "long")
    assert [each["name"] for each in (await ann.got("/flows?after=long"))["flows"]] == ["short"]
    assert (await ann.call("DELETE", "/flows/short")).status_code == 200
    failed(await ann.get("/flows/short"), 404, "NOT_FOUND")
    failed(await ann.call("DELETE", "/flows/short"), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({}, {"version"}),
        ({**WAIT, "version": "2.0.0"}, {"version"}),
        ({**WAIT, "graph": {"nodes": []}}, {"graph.edges", "graph.nodes"}),
        (
            flow([node("a", "wait", seconds=1), node("a", "wait", seconds=1)], [edge("a", "b")]),
            {"graph.nodes[1].id", "graph.edges[0].to"},
        ),
        (flow([node("a", "opcua.read")]), {"graph.nodes[0].type"}),
        (flow([node("a", "shell.run", command="true")]), {"graph.nodes[0].type"}),
        (flow([node("w", "wait", seconds=0)], name="openapi.json"), {"flow.name"}),
    ],
)
async def test_flow_that_is_none_is_refused_with_paths(ann: Caller, body: Any, paths: set[str]) -> None:
    error = failed(await ann.post("/flows", body), 400, "INVALID_REQUEST")
    assert paths <= {each["path"] for each in error["problems"]}
    assert (await ann.got("/flows"))["flows"] == []


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {}, 400, "INVALID_REQUEST"),
        (b"[]", {}, 400, "INVALID_REQUEST"),
        (b"", {}, 400, "INVALID_REQUEST"),
        (b"\xff", {}, 400, "INVALID_REQUEST"),
        (b"{}", {"content-type": "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b" " * 11_000_000, {}, 413, "PAYLOAD_TOO_LARGE"),
    ],
)
async def test_body_that_is_none_is_refused(
    ann: Caller, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    sent = {"content-type": "application/json", **headers}
    failed(await ann.call("POST", "/flows", content=content, headers=sent), status, code)


# --- runs ---


async def test_run_is_begun_looked_at_and_over(place: Station, ann: Caller, rid: str) -> None:
    nodes = [
        node("a", "http.get", **place.upstream.step("begun")),
        node("end", "finish", outputs={"n": "$input.n", "count": "$step.a.body.count"}),
    ]
    ir = flow(nodes, chain("a", "end"), name="counted")
    begun = await ann.begin(ir, rid, inputs={"n": 7})
    assert (begun["run_id"], begun["flow"], begun["version"], begun["door"]) == (rid, "counted", 1, "rep")
    ended = await ann.ended(rid)
    assert (ended["status"], ended["state"], ended["outcome"]) == ("completed", "completed", "ok")
    assert ended["summary"]["outputs"] == {"n": 7, "count": 1}
    assert ended["inputs"] == {"n": 7}
    assert [each["run_id"] for each in (await ann.got("/runs"))["runs"]] == [rid]


async def test_same_run_id_again_is_the_same_run(place: Station, ann: Caller, bo: Caller, rid: str) -> None:
    ir = place.steps("once", name="once")
    await ann.begin(ir, rid)
    await ann.ended(rid)
    again = await ann.post("/flows/once/runs", {"run_id": rid})
    assert (again.status_code, again.json()["status"]) == (200, "completed")
    assert place.upstream.asked["/once"] == 1
    failed(await ann.post("/flows/once/runs", {"run_id": rid, "inputs": {"n": 2}}), 409, "CONFLICT")
    await ann.post("/flows", WAIT)
    failed(await ann.post("/flows/short/runs", {"run_id": rid}), 409, "CONFLICT")
    await bo.post("/flows", ir)
    failed(await bo.post("/flows/once/runs", {"run_id": rid}), 409, "CONFLICT")
    assert place.upstream.asked["/once"] == 1


async def test_run_without_a_body_gets_an_id_of_its_own(ann: Caller) -> None:
    await ann.post("/flows", WAIT)
    one, other = (await ann.post("/flows/short/runs"), await ann.post("/flows/short/runs"))
    assert one.status_code == other.status_code == 202
    assert one.json()["run_id"] != other.json()["run_id"]
    assert one.headers["location"] == f"/runs/{one.json()['run_id']}"
    assert (await ann.ended(one.json()["run_id"]))["status"] == "completed"


async def test_run_may_be_of_an_earlier_version(ann: Caller, rid: str) -> None:
    old = flow([node("e", "finish", outputs="old")], name="versions")
    await ann.post("/flows", old)
    await ann.post("/flows", flow([node("e", "finish", outputs="new")], name="versions"))
    answer = await ann.post("/flows/versions/runs", {"run_id": rid, "version": 1})
    assert answer.json()["version"] == 1
    assert (await ann.ended(rid))["summary"]["outputs"] == "old"
    failed(await ann.post("/flows/versions/runs", {"version": 9}), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"inputs": []}, "inputs"),
        ({"inputs": {}}, "inputs.n"),
        ({"inputs": {"n": "x"}}, "inputs.n"),
        ({"inputs": {"n": 1}, "run_id": ""}, "run_id"),
        ({"inputs": {"n": 1}, "run_id": "a/b"}, "run_id"),
        ({"inputs": {"n": 1}, "run_id": "a\0b"}, "run_id"),
        ({"inputs": {"n": 1}, "concurrency": 0}, "concurrency"),
        ({"inputs": {"n": 1}, "concurrency": True}, "concurrency"),
        ({"inputs": {"n": 1}, "timeout": -1}, "timeout"),
        ({"input": {"n": 1}}, "input"),
        ({"inputs": {"n": 1}, "allow_shell": True}, "allow_shell"),
    ],
)
async def test_bad_requests_for_a_run_are_refused_with_paths(
    ann: Caller, body: dict[str, Any], path: str
) -> None:
    await ann.post("/flows", flow([node("w", "wait", seconds=0)], inputs_schema={"n": {"type": "int"}}))
    error = failed(await ann.post("/flows/tested/runs", body), 400, "INVALID_REQUEST")
    assert path in [each["path"] for each in error["problems"]]
    assert (await ann.got("/runs"))["runs"] == []


async def test_failing_run_tells_why_and_is_resumed_from_there(place: Station, ann: Caller, rid: str) -> None:
    place.upstream.fail("/breaks", 1)
    await ann.begin(place.steps("before", "breaks", "after", name="breaking"), rid)
    ended = await ann.ended(rid)
    assert (ended["status"], ended["outcome"]) == ("failed", "step_failed")
    assert ended["summary"]["error"]["data"]["step_id"] == "breaks"
    assert (await ann.post(f"/runs/{rid}/resume")).status_code == 202
    assert (await ann.ended(rid))["status"] == "completed"
    asked = place.upstream.asked
    assert (asked["/before"], asked["/breaks"], asked["/after"]) == (1, 2, 1)
    failed(await ann.post(f"/runs/{rid}/resume"), 409, "CONFLICT")


async def test_run_whose_time_is_over_ends_so(ann: Caller, rid: str) -> None:
    await ann.begin(LONG, rid, timeout=0.8)
    ended = await ann.ended(rid)
    assert (ended["status"], ended["outcome"]) == ("failed", "timeout")
    assert ended["summary"]["error"]["code"] == 3001


async def test_flow_runs_flows_that_its_owner_keeps(ann: Caller, bo: Caller, rid: str) -> None:
    inner = flow([node("e", "finish", outputs={"got": "$input.x"})], name="inner")
    middle = flow([node("m", "flow.run", flow="inner", inputs={"x": "$input.x"})], name="middle")
    outer = flow([node("o", "flow.run", flow="middle", inputs={"x": 1})], name="outer")
    for each in (inner, middle):
        await ann.post("/flows", each)
    await ann.begin(outer, rid)
    assert (await ann.ended(rid))["summary"]["outputs"] == {"o": {"m": {"got": 1}}}
    await bo.begin(outer, f"{rid}-bo")
    error = (await bo.ended(f"{rid}-bo"))["summary"]["error"]
    assert "There is no flow 'middle'" in error["message"]


# --- looking on ---


async def test_events_come_as_they_happen_and_again_from_where_one_was(
    place: Station, ann: Caller, rid: str
) -> None:
    place.upstream.hold("/watched")
    await ann.begin(place.steps("first", "watched", name="watched"), rid)
    headers = ann.headers
    seen = ""
    async with asyncio.timeout(PATIENCE):
        url = f"{ann.server.url}/runs/{rid}/events"
        async with ann.client.stream("GET", url, headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for text in stream.aiter_text():
                seen += text
                if '"step_id": "watched"' in seen and seen.endswith("\n\n"):
                    break
    place.upstream.let_go("/watched")
    events = await ann.events(rid)
    steps = [(data["step_id"], data["state"]) for _, name, data in events if name == "step"]
    assert steps == [
        ("first", "started"),
        ("first", "succeeded"),
        ("watched", "started"),
        ("watched", "succeeded"),
    ]
    assert events[-1][1] == "end"
    assert events[-1][2]["summary"]["completed_steps"] == 2
    last = steps.index(("watched", "started"))
    rest = await ann.events(rid, **{"Last-Event-ID": str(events[last][0])})
    assert rest == events[last + 1 :]
    assert await ann.events(rid, **{"Last-Event-ID": "999999"}) == events[-1:]
    numbers = [int(id) for id, _, _ in events if id is not None]
    assert numbers == sorted(set(numbers))


async def test_runs_of_every_door_are_in_one_place(place: Station, operator: Caller) -> None:
    key = await place.user(operator, "everywhere", ALL)
    other = await place.user(operator, "elsewhere", ALL)
    user = await place.store.users.by_name("everywhere")
    assert user is not None
    row = a_run(user.id, label="get_user", details='{"tool_calls":0}')
    await place.store.runs.add_many([row])
    told = await key.got(f"/runs/{row.run_id}")
    assert (told["door"], told["status"], told["label"]) == ("abilities", "completed", "get_user")
    assert [name for _, name, _ in await key.events(row.run_id)] == ["end"]
    assert (await key.got(f"/runs/{row.run_id}/approvals"))["approvals"] == []
    assert (await key.post(f"/runs/{row.run_id}/cancel")).json()["ok"] is True
    failed(await key.post(f"/runs/{row.run_id}/resume"), 409, "CONFLICT")
    failed(await other.get(f"/runs/{row.run_id}"), 404, "NOT_FOUND")
