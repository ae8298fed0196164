"""Flows on a real server: kept, run, looked at by their owners alone, cancelled and approved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from tests.doors.rep.stations import ALL, Caller, Station, station
from tests.flows import chain, edge, flow, node
from tests.processes import PATIENCE
from tests.store.made import a_flow_run, a_run

from hutch.doors.rep import openapi
from hutch.doors.rep.http import routes
from hutch.settings import Settings

OPERATOR = "operator"


@pytest.fixture(scope="module")
async def there(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Station, Caller]]:
    """One server for the tests here, which has an operator's key."""
    home = str(tmp_path_factory.mktemp("station"))
    async with (
        station(Settings(home=home), HUTCH_API_KEY=OPERATOR) as made,
        made.serving(key=OPERATOR) as operator,
    ):
        yield made, operator


@pytest.fixture
def place(there: tuple[Station, Caller]) -> Station:
    return there[0]


@pytest.fixture
def operator(there: tuple[Station, Caller]) -> Caller:
    return there[1]


@pytest.fixture
async def ann(place: Station, operator: Caller, request: pytest.FixtureRequest) -> Caller:
    """A user of this test's own."""
    return await place.user(operator, f"ann-{abs(hash(request.node.nodeid))}")


@pytest.fixture
async def bo(place: Station, operator: Caller, request: pytest.FixtureRequest) -> Caller:
    return await place.user(operator, f"bo-{abs(hash(request.node.nodeid))}")


def failed(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, code), body
    assert body["success"] is False
    error: dict[str, Any] = body["error"]
    return error


def run_id(request: pytest.FixtureRequest) -> str:
    return f"run-{abs(hash(request.node.nodeid))}"


@pytest.fixture
def rid(request: pytest.FixtureRequest) -> str:
    return run_id(request)


WAIT = flow([node("w", "wait", seconds=0)], name="short")
LONG = flow([node("w", "wait", seconds=600)], name="long")


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


# --- owners ---


async def test_nobody_sees_what_is_anothers(ann: Caller, bo: Caller, operator: Caller, rid: str) -> None:
    ask = flow([node("ask", "approve", message="Really?")], name="asking")
    await ann.begin(ask, rid)
    await approvals(ann, rid)
    word = {"approved": True}
    for other in (bo, operator):
        failed(await other.get("/flows/asking"), 404, "NOT_FOUND")
        failed(await other.post("/flows/asking/runs"), 404, "NOT_FOUND")
        failed(await other.call("DELETE", "/flows/asking"), 404, "NOT_FOUND")
        unknown = failed(await other.get("/runs/nobody"), 404, "NOT_FOUND")["message"]
        for path in ("", "/events", "/approvals"):
            foreign = failed(await other.get(f"/runs/{rid}{path}"), 404, "NOT_FOUND")["message"]
            assert foreign.replace(rid, "nobody") == unknown
        for path, body in (("/cancel", None), ("/resume", None), ("/approvals/ask", word)):
            failed(await other.post(f"/runs/{rid}{path}", body), 404, "NOT_FOUND")
        assert rid not in [each["run_id"] for each in (await other.got("/runs"))["runs"]]
    assert (await ann.got(f"/runs/{rid}"))["status"] == "running"
    await ann.post(f"/runs/{rid}/cancel")
    await ann.ended(rid)


async def test_keys_count_only_where_they_are_for(place: Station, operator: Caller) -> None:
    failed(await Caller(operator.server, operator.client).get("/flows"), 401, "UNAUTHORIZED")
    failed(await Caller(operator.server, operator.client, "hk_x").get("/flows"), 401, "UNAUTHORIZED")
    wrong = await place.user(operator, "narrow", ("abilities",))
    message = failed(await wrong.get("/flows"), 403, "FORBIDDEN")["message"]
    assert message == (
        "This key is for abilities, not for rep; `hutch key add USER --scope rep` makes one that is"
    )


@pytest.mark.parametrize(
    ("kind", "given", "scope"),
    [
        ("code.run", {"code": "1"}, "execbox"),
        ("mcp.call", {"server": "s", "tool": "t", "arguments": {}}, "toolscript"),
        ("toolscript.run", {"code": "1"}, "toolscript"),
        ("tool.execute", {"package": "p", "name": "n", "params": {}}, "tpmjs"),
        ("ability.execute", {"ability": "a", "params": {}}, "abilities"),
    ],
)
async def test_flow_opens_no_door_that_the_key_does_not(
    place: Station, operator: Caller, ann: Caller, kind: str, given: dict[str, Any], scope: str, rid: str
) -> None:
    ir = flow([node("s", kind, **given)], name="sneaky")
    message = failed(await ann.post("/flows", ir), 403, "FORBIDDEN")["message"]
    assert message == (
        f"graph.nodes[0].type: this key is not for {scope};"
        f" `hutch key add USER --scope rep --scope {scope}` makes one that is"
    )
    # Nor by a flow that comes as an input.
    outer = flow([node("o", "flow.run", flow="$input.ir", inputs={})], name="outer")
    await ann.begin(outer, rid, inputs={"ir": ir})
    ended = await ann.ended(rid)
    assert f"there is no kind '{kind}'" in ended["summary"]["error"]["message"]
    wide = await place.user(operator, "wide", ("rep", scope))
    assert (await wide.post("/flows", ir)).status_code in (200, 201)
    # What was kept with one key is not run with another.
    narrow = await place.user(operator, "wide", ("rep",))
    failed(await narrow.post("/flows/sneaky/runs"), 403, "FORBIDDEN")


async def test_run_is_not_resumed_with_a_key_for_less_which_is_told_what_it_lacks(
    place: Station, operator: Caller, rid: str
) -> None:
    wide = await place.user(operator, "resuming", ("rep", "execbox", "tpmjs"))
    place.upstream.fail("/resumed", 1)
    await wide.begin(place.steps("resumed", name="resumed"), rid)
    assert (await wide.ended(rid))["status"] == "failed"
    narrow = await place.user(operator, "resuming", ("rep",))
    message = failed(await narrow.post(f"/runs/{rid}/resume"), 403, "FORBIDDEN")["message"]
    assert "`hutch key add USER --scope rep --scope execbox --scope tpmjs` makes one that is" in message


async def test_operator_sees_runs_under_both_names(place: Station, operator: Caller, rid: str) -> None:
    by_hand = a_flow_run("local", run_id=f"{rid}-local", origin="cli")
    assert await place.store.journal.add(by_hand)
    await operator.begin(WAIT, rid)
    listed = [each["run_id"] for each in (await operator.got("/runs"))["runs"]]
    assert {rid, by_hand.run_id} <= {*listed}
    page = await operator.got("/runs?limit=1")
    rest = await operator.got(f"/runs?before={page['next']}")
    assert [each["run_id"] for each in page["runs"] + rest["runs"]] == listed
    await operator.ended(rid)


async def test_flow_of_a_user_reads_no_files(ann: Caller, rid: str) -> None:
    await ann.begin(flow([node("o", "flow.run", flow="../secret.json", inputs={})], name="files"), rid)
    assert "There is no flow" in (await ann.ended(rid))["summary"]["error"]["message"]


# --- limits ---


async def test_key_may_begin_and_register_so_often_and_look_on_as_often_as_it_likes(
    store_settings: Settings,
) -> None:
    async with (
        station(store_settings, HUTCH_API_KEY=OPERATOR, HUTCH_FLOW_RATE_LIMIT="3") as place,
        place.serving(key=OPERATOR) as operator,
    ):
        ann, bo = await place.user(operator, "ann"), await place.user(operator, "bo")
        assert (await ann.post("/flows", WAIT)).status_code == 201
        for number in range(2):
            assert (await ann.post("/flows/short/runs", {"run_id": f"r{number}"})).status_code == 202
        for path, body in (("/flows", WAIT), ("/flows/short/runs", {}), ("/runs/r0/resume", None)):
            refused = await ann.post(path, body)
            message = failed(refused, 429, "RATE_LIMITED")["message"]
            assert "may register flows and begin runs 3 times a minute" in message
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        # Another key of the same user has its own, and so has everybody else.
        again = await place.user(operator, "ann")
        assert (await again.post("/flows", WAIT)).status_code == 200
        assert (await bo.post("/flows", WAIT)).status_code == 201
        for _ in range(5):
            assert (await operator.post("/flows", WAIT)).status_code in (200, 201)
            for path in ("/flows", "/flows/short", "/runs", "/runs/r0", "/runs/r0/approvals"):
                await ann.got(path)
        assert (await ann.ended("r1"))["status"] == "completed"
        assert (await ann.post("/runs/r0/cancel")).status_code == 200


# --- cancelling and approving ---


async def approvals(caller: Caller, rid: str, step_id: str | None = None) -> list[dict[str, Any]]:
    """Waits until there are any, or that of a step."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found: list[dict[str, Any]] = (await caller.got(f"/runs/{rid}/approvals"))["approvals"]
            if any(step_id in (None, each["step_id"]) for each in found):
                return found
            await asyncio.sleep(0.01)


async def test_cancel_ends_a_run_and_may_be_repeated(place: Station, ann: Caller, rid: str) -> None:
    place.upstream.hold("/cancelled")
    await ann.begin(place.steps("cancelled", "never", name="cancelling"), rid)
    await asyncio.to_thread(place.upstream.until_asked, "/cancelled")
    for _ in range(2):
        assert (await ann.post(f"/runs/{rid}/cancel")).json() == {"ok": True, "run_id": rid}
        ended = await ann.ended(rid)
        assert (ended["status"], ended["state"], ended["outcome"]) == ("failed", "cancelled", "cancelled")
        assert ended["summary"]["cancelled"] is True
    place.upstream.let_go("/cancelled")
    assert place.upstream.asked["/never"] == 0


async def test_step_waits_until_it_is_approved(ann: Caller, rid: str) -> None:
    inner = flow([node("deep", "approve", message="Deep?")], name="inner")
    nodes = [
        node("ask", "approve", message="Really?"),
        node("sub", "flow.run", flow=inner),
        node("end", "finish", outputs=["$step.ask", "$step.sub"]),
    ]
    await ann.begin(flow(nodes, chain("ask", "sub", "end"), name="asking"), rid)
    [asked] = await approvals(ann, rid)
    assert (asked["step_id"], asked["message"]) == ("ask", "Really?")
    assert (await ann.got(f"/runs/{rid}"))["approvals"] == [asked]
    failed(await ann.post(f"/runs/{rid}/approvals/other", {"approved": True}), 409, "CONFLICT")
    for wrong in ({}, {"approved": "yes"}, {"approved": True, "more": 1}, {"approved": True, "by": ""}):
        failed(await ann.post(f"/runs/{rid}/approvals/ask", wrong), 400, "INVALID_REQUEST")
    # A user speaks for nobody else.
    said = await ann.post(f"/runs/{rid}/approvals/ask", {"approved": True, "by": "the boss"})
    assert said.json() == {"ok": True, "run_id": rid, "step_id": "ask", "approved": True}
    await approvals(ann, rid, "sub/deep")
    await ann.post(f"/runs/{rid}/approvals/sub/deep", {"approved": True})
    first, second = (await ann.ended(rid))["summary"]["outputs"]
    assert first["approved"] is second["deep"]["approved"] is True
    assert first["by"].startswith("ann-")
    failed(await ann.post(f"/runs/{rid}/approvals/ask", {"approved": True}), 409, "CONFLICT")


async def test_of_many_steps_that_wait_the_first_are_told_and_all_are_counted(ann: Caller, rid: str) -> None:
    names = [f"s{number:03}" for number in range(130)]
    await ann.begin(flow([node(name, "approve", message="?") for name in names], name="many"), rid)
    async with asyncio.timeout(PATIENCE):
        while (await ann.got(f"/runs/{rid}"))["approvals_total"] < 130:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # nobody tells of it
    whole = await ann.got(f"/runs/{rid}")
    assert [each["step_id"] for each in whole["approvals"]] == names[:100]
    rest = await ann.got(f"/runs/{rid}/approvals?limit=50&offset=100")
    assert ([each["step_id"] for each in rest["approvals"]], rest["approvals_total"]) == (names[100:], 130)
    failed(await ann.get(f"/runs/{rid}/approvals?limit=0"), 400, "INVALID_REQUEST")
    # One that is on no list is heard all the same.
    assert (await ann.post(f"/runs/{rid}/approvals/s129", {"approved": True})).status_code == 200
    async with asyncio.timeout(PATIENCE):
        while (await ann.got(f"/runs/{rid}/approvals"))["approvals_total"] != 129:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await ann.post(f"/runs/{rid}/cancel")
    await ann.ended(rid)


async def test_step_is_refused(operator: Caller, rid: str) -> None:
    await operator.begin(flow([node("ask", "approve", message="Really?")], name="refused"), rid)
    await approvals(operator, rid)
    await operator.post(f"/runs/{rid}/approvals/ask", {"approved": False, "by": "Bo", "reason": "too dear"})
    assert "not approved by Bo: too dear" in (await operator.ended(rid))["summary"]["error"]["message"]


# --- for programs ---


async def test_other_methods_and_paths_are_refused(ann: Caller) -> None:
    answer = await ann.call("PUT", "/flows")
    assert "GET, POST" in failed(answer, 405, "METHOD_NOT_ALLOWED")["message"]
    assert answer.headers["allow"] == "GET, POST"
    failed(await ann.get("/runs?limit=x"), 400, "INVALID_REQUEST")
    failed(await ann.get("/flows?after=a%00b"), 400, "INVALID_REQUEST")
    assert (await ann.call("HEAD", "/flows")).status_code == 200


async def test_page_of_another_site_may_not_come(operator: Caller) -> None:
    answer = await operator.call("GET", "/flows", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403


async def test_document_is_served_and_tells_the_truth(ann: Caller, operator: Caller, rid: str) -> None:
    public = Caller(ann.server, ann.client)
    document = await public.got("/flows/openapi.json")
    assert document == openapi.document(Settings())

    def check(path: str, method: str, answer: httpx2.Response) -> None:
        content = document["paths"][path][method]["responses"][str(answer.status_code)]["content"]
        schema = {**content["application/json"]["schema"], "components": document["components"]}
        jsonschema_rs.validator_for(schema).validate(answer.json())

    check("/flows", "post", await ann.post("/flows", WAIT))
    check("/flows", "post", await ann.post("/flows", WAIT))
    check("/flows", "post", await ann.post("/flows", {}))
    check("/flows", "get", await ann.get("/flows?limit=1"))
    check("/flows/{name}", "get", await ann.get("/flows/short"))
    check("/flows/{name}", "get", await ann.get("/flows/none"))
    for _ in range(2):
        check("/flows/{name}/runs", "post", await ann.post("/flows/short/runs", {"run_id": rid}))
    check(
        "/flows/{name}/runs", "post", await ann.post("/flows/short/runs", {"run_id": rid, "inputs": {"a": 1}})
    )
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}"))
    await ann.ended(rid)
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}"))
    check("/runs", "get", await ann.get("/runs"))
    check("/runs/{id}/cancel", "post", await ann.post(f"/runs/{rid}/cancel"))
    check("/runs/{id}/resume", "post", await ann.post(f"/runs/{rid}/resume"))
    await ann.begin(flow([node("ask", "approve", message="?")], name="asks"), f"{rid}-ask")
    await approvals(ann, f"{rid}-ask")
    check("/runs/{id}/approvals", "get", await ann.get(f"/runs/{rid}-ask/approvals"))
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}-ask"))
    answer = await ann.post(f"/runs/{rid}-ask/approvals/ask", {"approved": False})
    check("/runs/{id}/approvals/{step_id}", "post", answer)
    await ann.ended(f"{rid}-ask")
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}-ask"))
    check("/flows/{name}", "delete", await ann.call("DELETE", "/flows/short"))


def test_document_has_every_path() -> None:
    from hutch.doors.gate import Gate
    from hutch.doors.rep.flows import Flows

    settings = Settings()

    async def no_store() -> Any:
        raise AssertionError

    served = set()
    for each in routes(Flows(settings, no_store), Gate(settings)):
        path = each.path.replace(":path", "")  # type: ignore[attr-defined]
        works = getattr(each.app, "_works", {"GET": None})  # type: ignore[attr-defined]
        served |= {(path, method.lower()) for method in works}
    told = {(path, method) for path, item in openapi.document(settings)["paths"].items() for method in item}
    assert told == served
