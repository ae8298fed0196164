"""Flows on a real server: stored, run and observed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.protocols.rep.flow_server import ALL_SCOPES, FlowClient, FlowServer
from tests.protocols.rep.server.helpers import LONG, WAIT, assert_error, wait_for_approvals
from tests.store.factories import add_runs, make_run
from tests.support.flows import chain, edge, flow, node
from tests.support.processes import TIMEOUT_SECONDS, hutch

from hutch.protocols.rep.ir.source.yaml import decode_yaml
from hutch.protocols.rep.server.routes import MAX_YAML_BYTES

# --- flows ---


async def test_flow_is_stored_with_versions(ann: FlowClient) -> None:
    first = await ann.post("/flows", WAIT)
    assert (first.status_code, first.json()["version"]) == (201, 1)
    assert first.headers["location"] == "/flows/short"
    assert (await ann.post("/flows", WAIT)).status_code == 200
    changed = flow([node("w", "wait", seconds=0.01)], name="short")
    assert (await ann.post("/flows", changed)).json()["version"] == 2
    assert (await ann.get_json("/flows/short"))["document"] == changed
    assert (await ann.get_json("/flows/short?version=1"))["document"] == WAIT
    assert_error(await ann.get("/flows/short?version=3"), 404, "NOT_FOUND")
    await ann.post("/flows", LONG)
    assert [each["name"] for each in (await ann.get_json("/flows"))["flows"]] == ["long", "short"]
    page = await ann.get_json("/flows?limit=1")
    assert ([each["name"] for each in page["flows"]], page["next"]) == (["long"], "long")
    assert [each["name"] for each in (await ann.get_json("/flows?after=long"))["flows"]] == ["short"]
    assert (await ann.call("DELETE", "/flows/short")).status_code == 200
    assert_error(await ann.get("/flows/short"), 404, "NOT_FOUND")
    assert_error(await ann.call("DELETE", "/flows/short"), 404, "NOT_FOUND")


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
    ],
)
async def test_invalid_flow_is_refused_with_paths(ann: FlowClient, body: Any, paths: set[str]) -> None:
    error = assert_error(await ann.post("/flows", body), 400, "INVALID_REQUEST")
    assert paths <= {each["path"] for each in error["problems"]}
    assert (await ann.get_json("/flows"))["flows"] == []


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
async def test_invalid_body_is_refused(
    ann: FlowClient, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    sent = {"content-type": "application/json", **headers}
    assert_error(await ann.call("POST", "/flows", content=content, headers=sent), status, code)


async def test_refused_content_type_names_that_of_yaml(ann: FlowClient) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = await ann.call("POST", "/flows", content=b"name: x", headers=headers)
    assert response.json()["error"]["message"].endswith("; YAML needs application/yaml")


# --- runs ---


SHORT = """
name: short-form
inputs: {name: string}
steps:
  - {id: pause, run: wait, with: {seconds: 0}}
outputs: {text: "Hello, ${input.name}!"}
"""


async def test_flow_in_the_short_form_is_accepted_as_yaml_and_as_json(ann: FlowClient, rid: str) -> None:
    headers = {"Content-Type": "application/yaml; charset=utf-8"}
    created = await ann.call("POST", "/flows", content=SHORT, headers=headers)
    assert (created.status_code, created.json()["version"]) == (201, 1), created.text
    assert (await ann.call("POST", "/flows", content=SHORT, headers=headers)).status_code == 200
    assert (await ann.post("/flows", decode_yaml(SHORT))).status_code == 200
    assert (await ann.get_json("/flows/short-form"))["document"]["version"] == "1.0.0"
    await ann.post("/flows/short-form/runs", {"run_id": rid, "inputs": {"name": "Bo"}})
    assert (await ann.wait_for_end(rid))["summary"]["outputs"] == {"text": "Hello, Bo!"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (SHORT.replace("with", "wiht"), {"path": "steps[0].wiht", "line": 5, "step": "pause"}),
        (SHORT.replace("input.name", "input.nam"), {"path": "outputs.text", "line": 6}),
        ("name: [", {"path": ""}),
        ("a: &a [1]\nb: *a", {"path": ""}),
    ],
)
async def test_invalid_yaml_flow_is_refused_with_lines(
    ann: FlowClient, content: str, problem: dict[str, Any]
) -> None:
    response = await ann.call("POST", "/flows", content=content, headers={"Content-Type": "application/yaml"})
    [found] = assert_error(response, 400, "INVALID_REQUEST")["problems"]
    assert found.items() >= problem.items()


async def test_stored_flows_are_listed_on_the_command_line(server: FlowServer, operator: FlowClient) -> None:
    assert (await operator.post("/flows", {**LONG, "flow": {"name": "listed", "timeout_ms": 0}})).is_success
    done = await asyncio.to_thread(hutch, "flow", "list", env={"HUTCH_HOME": str(server.home)})
    assert [line.split()[:2] for line in done.stdout.splitlines() if "listed" in line] == [["listed", "1"]]


async def test_yaml_flow_is_limited(ann: FlowClient) -> None:
    headers = {"Content-Type": "application/yaml"}
    too_large = await ann.call("POST", "/flows", content=" " * (MAX_YAML_BYTES + 1), headers=headers)
    assert too_large.status_code == 413
    no_text = await ann.call("POST", "/flows", content=b"\xff", headers=headers)
    assert_error(no_text, 400, "INVALID_REQUEST")


async def test_run_is_started_observed_and_ends(server: FlowServer, ann: FlowClient, rid: str) -> None:
    nodes = [
        node("a", "http.get", **server.upstream.step("begun")),
        node("end", "finish", outputs={"n": "$input.n", "count": "$step.a.body.count"}),
    ]
    ir = flow(nodes, chain("a", "end"), name="counted")
    begun = await ann.start_run(ir, rid, inputs={"n": 7})
    assert (begun["run_id"], begun["flow"], begun["version"], begun["door"]) == (rid, "counted", 1, "rep")
    ended = await ann.wait_for_end(rid)
    assert (ended["status"], ended["state"], ended["outcome"]) == ("completed", "completed", "ok")
    assert ended["summary"]["outputs"] == {"n": 7, "count": 1}
    assert ended["inputs"] == {"n": 7}
    assert [each["run_id"] for each in (await ann.get_json("/runs"))["runs"]] == [rid]


async def test_same_run_id_returns_the_same_run(
    server: FlowServer, ann: FlowClient, bo: FlowClient, rid: str
) -> None:
    ir = server.steps("once", name="once")
    await ann.start_run(ir, rid)
    await ann.wait_for_end(rid)
    again = await ann.post("/flows/once/runs", {"run_id": rid})
    assert (again.status_code, again.json()["state"]) == (200, "completed")
    assert server.upstream.request_counts["/once"] == 1
    assert_error(await ann.post("/flows/once/runs", {"run_id": rid, "inputs": {"n": 2}}), 409, "CONFLICT")
    await ann.post("/flows", WAIT)
    assert_error(await ann.post("/flows/short/runs", {"run_id": rid}), 409, "CONFLICT")
    await bo.post("/flows", ir)
    assert_error(await bo.post("/flows/once/runs", {"run_id": rid}), 409, "CONFLICT")
    assert server.upstream.request_counts["/once"] == 1


async def test_run_id_beyond_ascii_is_refused(ann: FlowClient) -> None:
    """The id of a run must be ASCII, because it is sent in response headers."""
    await ann.post("/flows", WAIT)
    refused = await ann.post("/flows/short/runs", {"run_id": "☃"})
    message = "run_id: expected 1 to 200 printable ASCII characters, without /"
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, message)


async def test_run_without_a_body_gets_a_new_id(ann: FlowClient) -> None:
    await ann.post("/flows", WAIT)
    one, other = (await ann.post("/flows/short/runs"), await ann.post("/flows/short/runs"))
    assert one.status_code == other.status_code == 202
    assert one.json()["run_id"] != other.json()["run_id"]
    assert one.headers["location"] == f"/runs/{one.json()['run_id']}"
    assert (await ann.wait_for_end(one.json()["run_id"]))["state"] == "completed"


async def test_location_of_a_run_is_a_url(ann: FlowClient, rid: str) -> None:
    await ann.post("/flows", WAIT)
    response = await ann.post("/flows/short/runs", {"run_id": f"{rid} 100%?#"})
    assert (response.status_code, response.headers["location"]) == (202, f"/runs/{rid}%20100%25%3F%23")
    assert (await ann.get_json(response.headers["location"]))["run_id"] == f"{rid} 100%?#"


async def test_run_of_an_earlier_version(ann: FlowClient, rid: str) -> None:
    old = flow([node("e", "finish", outputs="old")], name="versions")
    await ann.post("/flows", old)
    await ann.post("/flows", flow([node("e", "finish", outputs="new")], name="versions"))
    response = await ann.post("/flows/versions/runs", {"run_id": rid, "version": 1})
    assert response.json()["version"] == 1
    assert (await ann.wait_for_end(rid))["summary"]["outputs"] == "old"
    assert_error(await ann.post("/flows/versions/runs", {"version": 9}), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"inputs": []}, "inputs"),
        ({"inputs": {}}, "inputs.n"),
        ({"inputs": {"n": "x"}}, "inputs.n"),
        ({"inputs": {"n": 1}, "run_id": ""}, "run_id"),
        ({"inputs": {"n": 1}, "run_id": "a/b"}, "run_id"),
        ({"inputs": {"n": 1}, "run_id": "a\0b"}, "run_id"),
        ({"inputs": {"n": 1}, "run_id": "läuft"}, "run_id"),
        ({"inputs": {"n": 1}, "run_id": "走"}, "run_id"),
        ({"inputs": {"n": 1}, "concurrency": 0}, "concurrency"),
        ({"inputs": {"n": 1}, "concurrency": True}, "concurrency"),
        ({"inputs": {"n": 1}, "timeout": -1}, "timeout"),
        ({"input": {"n": 1}}, "input"),
        ({"inputs": {"n": 1}, "allow_shell": True}, "allow_shell"),
    ],
)
async def test_invalid_start_requests_are_refused_with_paths(
    ann: FlowClient, body: dict[str, Any], path: str
) -> None:
    await ann.post("/flows", flow([node("w", "wait", seconds=0)], inputs_schema={"n": {"type": "int"}}))
    error = assert_error(await ann.post("/flows/tested/runs", body), 400, "INVALID_REQUEST")
    assert path in [each["path"] for each in error["problems"]]
    assert (await ann.get_json("/runs"))["runs"] == []


async def test_failed_run_reports_the_error_and_is_resumed(
    server: FlowServer, ann: FlowClient, rid: str
) -> None:
    server.upstream.fail("/breaks", 1)
    await ann.start_run(server.steps("before", "breaks", "after", name="breaking"), rid)
    ended = await ann.wait_for_end(rid)
    assert (ended["state"], ended["outcome"]) == ("failed", "step_failed")
    assert ended["summary"]["error"]["data"]["step_id"] == "breaks"
    message = f"breaks: {ended['summary']['error']['message']}"
    listed = (await ann.get_json("/runs?status=failed"))["runs"]
    assert [run["error"]["message"] for run in (ended, *listed) if run["run_id"] == rid] == [message] * 2
    assert (await ann.post(f"/runs/{rid}/resume")).status_code == 202
    resumed = await ann.wait_for_end(rid)
    assert (resumed["state"], resumed["error"]) == ("completed", None)
    asked = server.upstream.request_counts
    assert (asked["/before"], asked["/breaks"], asked["/after"]) == (1, 2, 1)
    assert_error(await ann.post(f"/runs/{rid}/resume"), 409, "CONFLICT")


async def test_run_timeout_ends_the_run(ann: FlowClient, rid: str) -> None:
    await ann.start_run(LONG, rid, timeout=0.8)
    ended = await ann.wait_for_end(rid)
    assert (ended["state"], ended["outcome"]) == ("failed", "timeout")
    assert ended["summary"]["error"]["code"] == 3001


async def test_flow_runs_other_flows_of_its_owner(ann: FlowClient, bo: FlowClient, rid: str) -> None:
    inner = flow([node("e", "finish", outputs={"got": "$input.x"})], name="inner")
    middle = flow([node("m", "flow.run", flow="inner", inputs={"x": "$input.x"})], name="middle")
    outer = flow([node("o", "flow.run", flow="middle", inputs={"x": 1})], name="outer")
    for each in (inner, middle):
        await ann.post("/flows", each)
    await ann.start_run(outer, rid)
    assert (await ann.wait_for_end(rid))["summary"]["outputs"] == {"o": {"m": {"got": 1}}}
    await bo.start_run(outer, f"{rid}-bo")
    error = (await bo.wait_for_end(f"{rid}-bo"))["summary"]["error"]
    assert "There is no flow 'middle'" in error["message"]


# --- observing ---


async def test_completed_run_is_retried_from_a_step(server: FlowServer, ann: FlowClient, rid: str) -> None:
    await ann.start_run(server.steps("r1", "r2", "r3", name="retried"), rid)
    await ann.wait_for_end(rid)
    last = (await ann.events(rid))[-2][0]
    response = await ann.post(f"/runs/{rid}/retry", {"from": "r2"})
    assert response.status_code == 202, response.text
    assert response.json() == {"ok": True, "run_id": rid, "repeated": ["r2", "r3"], "kept": ["r1"]}
    events = await ann.events(rid, **{"Last-Event-ID": str(last)})
    assert "retry from r2" in events[0][2]["message"]
    ended = await ann.wait_for_end(rid)
    assert (ended["state"], ended["summary"]["outputs"]["r3"]["body"]["count"]) == ("completed", 2)
    counts = server.upstream.request_counts
    assert [counts[path] for path in ("/r1", "/r2", "/r3")] == [1, 2, 2]


async def test_run_shows_inputs_and_outputs_of_its_finished_steps(
    server: FlowServer, ann: FlowClient, bo: FlowClient, rid: str
) -> None:
    await ann.start_run(server.steps("v1", "v2", "v3", name="values"), rid)
    ended = await ann.wait_for_end(rid)
    assert [step["step_id"] for step in ended["steps"]] == ["v1", "v2", "v3"]
    assert ended["steps_total"] == 3
    first = ended["steps"][0]
    assert first["input"] == {"url": server.upstream.url("/v1")}
    assert first["output"]["body"] == {"path": "/v1", "count": 1}
    assert (first["state"], first["kind"], first["attempt"]) == ("succeeded", "http.get", 0)
    page = await ann.get_json(f"/runs/{rid}/steps?limit=1&offset=1")
    assert page == {"run_id": rid, "steps": [ended["steps"][1]], "steps_total": 3}
    assert_error(await bo.get(f"/runs/{rid}/steps"), 404, "NOT_FOUND")
    # After a retry, each repeated step is listed only once.
    await ann.post(f"/runs/{rid}/retry", {"from": "v3"})
    again = await ann.wait_for_end(rid)
    assert [step["output"]["body"]["count"] for step in again["steps"]] == [1, 1, 2]


async def test_retry_needs_a_finished_step_of_a_run_that_is_not_running(ann: FlowClient, rid: str) -> None:
    nodes = [node("w", "wait", seconds=0), node("ask", "approve", message="Really?")]
    await ann.start_run(flow(nodes, chain("w", "ask"), name="asking"), rid)
    await wait_for_approvals(ann, rid)
    for body, field in (({}, "from"), ({"from": 1}, "from"), ({"from": "w", "x": 1}, "x")):
        error = assert_error(await ann.post(f"/runs/{rid}/retry", body), 400, "INVALID_REQUEST")
        assert error["problems"][0]["path"] == field
    for step in ("ask", "nope"):
        assert_error(await ann.post(f"/runs/{rid}/retry", {"from": step}), 400, "INVALID_REQUEST")
    assert_error(await ann.post(f"/runs/{rid}/retry", {"from": "w"}), 409, "CONFLICT")
    await ann.post(f"/runs/{rid}/cancel")
    await ann.wait_for_end(rid)


async def test_events_are_streamed_live_and_resumed_by_event_id(
    server: FlowServer, ann: FlowClient, rid: str
) -> None:
    server.upstream.hold("/watched")
    await ann.start_run(server.steps("first", "watched", name="watched"), rid)
    headers = ann.headers
    seen = ""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        url = f"{ann.server.url}/runs/{rid}/events"
        async with ann.client.stream("GET", url, headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for text in stream.aiter_text():
                seen += text
                if '"step_id": "watched"' in seen and seen.endswith("\n\n"):
                    break
    server.upstream.release("/watched")
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


async def test_runs_of_every_protocol_are_served(server: FlowServer, operator: FlowClient) -> None:
    key = await server.user(operator, "everywhere", ALL_SCOPES)
    other = await server.user(operator, "elsewhere", ALL_SCOPES)
    user = await server.store.users.by_name("everywhere")
    assert user is not None
    row = make_run(user.id, label="get_user", details='{"tool_calls":0}')
    await add_runs(server.store, [row])
    result = await key.get_json(f"/runs/{row.run_id}")
    assert (result["protocol"], result["status"], result["label"]) == ("abilities", "completed", "get_user")
    *_, (_, name, end) = await key.events(row.run_id)
    assert (name, end["status"]) == ("end", "completed")
    assert (await key.get_json(f"/runs/{row.run_id}/approvals"))["approvals"] == []
    assert_error(await key.post(f"/runs/{row.run_id}/cancel"), 409, "CONFLICT")
    assert_error(await key.post(f"/runs/{row.run_id}/resume"), 409, "CONFLICT")
    assert_error(await other.get(f"/runs/{row.run_id}"), 404, "NOT_FOUND")
