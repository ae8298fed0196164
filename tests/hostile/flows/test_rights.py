"""Flows that want more than the key is for, what is another's, and what may not be reached."""

from __future__ import annotations

import json
import time
from urllib.parse import quote, urlsplit

import pytest
from tests.doors.abilities.towns import ability
from tests.doors.rep.stations import Caller, Station
from tests.flows import flow, node
from tests.hostile.flows.harm import MARK, attempts, failed, tried
from tests.processes import PATIENCE
from tests.store.made import a_run

pytestmark = pytest.mark.anyio


# --- more than the key is for ---


async def test_no_flow_opens_a_door_that_the_key_does_not(eve: Caller, rid: str) -> None:
    code = node("c", "code.run", code="return 1")
    failed(await eve.post("/flows", flow([code], name="code")), 403, "FORBIDDEN")
    failed(await eve.post("/flows", flow([node("s", "shell.run", command="id")])), 400, "INVALID_REQUEST")
    inner = [
        flow([code]),
        flow([node("f", "flow.run", flow=flow([code]), inputs={})]),
        flow([node("s", "shell.run", command="id")]),
        flow([node("t", "tool.execute", package="x", name="y", params={})]),
    ]
    await eve.begin(
        attempts(
            [node(f"f{at}", "flow.run", flow=f"$input.flows[{at}]", inputs={}) for at in range(len(inner))]
        ),
        rid,
        inputs={"flows": inner},
    )
    outputs = (await eve.ended(rid))["summary"]["outputs"]
    assert len(outputs) == len(inner)
    assert all(
        "there is no kind" in json.dumps(each) or "not allowed" in json.dumps(each)
        for each in outputs.values()
    )
    # Brought along in the flow itself.
    await eve.begin(flow([node("f", "flow.run", flow=flow([code]), inputs={})], name="inner"), f"{rid}-2")
    assert (await eve.ended(f"{rid}-2"))["outcome"] == "step_failed"


async def test_a_key_for_less_goes_on_with_no_run_of_a_key_for_more(
    place: Station, operator: Caller, rid: str
) -> None:
    ada = await place.user(operator, f"ada-{rid}", ("rep", "execbox"))
    less = await place.user(operator, f"ada-{rid}", ("rep",))
    await ada.begin(flow([node("c", "code.run", code="throw new Error()")], name="code"), rid)
    assert (await less.ended(rid))["status"] == "failed"
    failed(await less.post(f"/runs/{rid}/resume"), 403, "FORBIDDEN")
    failed(await less.post("/flows/code/runs", {"run_id": rid}), 403, "FORBIDDEN")
    assert (await ada.post(f"/runs/{rid}/resume")).status_code == 202


async def test_options_are_not_for_the_client_to_say(eve: Caller, rid: str) -> None:
    assert (await eve.post("/flows", flow([node("w", "wait", seconds=0)], name="short"))).status_code == 201
    for option, value in {
        "user": "bo",
        "egress_allow": ["127.0.0.1"],
        "kinds": ["code.run"],
        "files": True,
        "allow_shell": True,
        "folder": "/",
        "options": {},
    }.items():
        answer = await eve.post("/flows/short/runs", {"run_id": rid, option: value})
        assert option in failed(answer, 400, "INVALID_REQUEST")


# --- what is another's ---


async def test_nothing_of_another_is_seen_or_touched(eve: Caller, bo: Caller, rid: str) -> None:
    ask = flow([node("ask", "approve", message=MARK)], name=f"f-{rid}")
    await bo.begin(ask, rid, inputs={"secret": MARK})
    calls = [
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/approvals"),
        ("POST", "/cancel"),
        ("POST", "/resume"),
        ("POST", "/approvals/ask"),
    ]
    for method, path in calls:
        body = {"json": {"approved": True}} if method == "POST" else {}
        answer = await eve.call(method, f"/runs/{rid}{path}", **body)
        unknown = await eve.call(method, f"/runs/{'0' * len(rid)}{path}", **body)
        assert failed(answer, 404, "NOT_FOUND").replace(rid, "") == failed(unknown, 404, "NOT_FOUND").replace(
            "0" * len(rid), ""
        )
    for method in ("GET", "DELETE"):
        failed(await eve.call(method, f"/flows/f-{rid}"), 404, "NOT_FOUND")
    failed(await eve.post(f"/flows/f-{rid}/runs", {}), 404, "NOT_FOUND")
    assert (await eve.got("/runs")) == {"runs": []}
    assert (await eve.got("/flows")) == {"flows": []}
    # By its name in a step: what she keeps under it herself, which is nothing.
    why = await tried(eve, f"{rid}-eve", [node("f", "flow.run", flow=f"f-{rid}", inputs={})])
    assert "There is no flow" in why["f"]["message"]
    assert (await bo.got(f"/runs/{rid}"))["status"] in ("pending", "running")
    await bo.post(f"/runs/{rid}/cancel")


async def test_the_same_run_id_tells_nothing_and_hides_nothing(
    place: Station, operator: Caller, eve: Caller, bo: Caller, rid: str
) -> None:
    short = flow([node("w", "wait", seconds=0)], name="short")
    await bo.begin(short, rid, inputs={"secret": MARK})
    await eve.post("/flows", short)
    for inputs in ({"secret": MARK}, {}):
        answer = await eve.post("/flows/short/runs", {"run_id": rid, "inputs": inputs})
        assert MARK not in failed(answer, 409, "CONFLICT")
    # A run of another door is not taken from its owner by one who calls a run of a flow the same.
    owner = await place.store.users.by_name(f"bo-{rid}")
    assert owner is not None
    other = a_run(run_id=f"{rid}-execbox", owner=owner.id, door="execbox")
    await place.store.runs.add_many([other])
    await eve.begin(short, other.run_id)
    assert (await eve.ended(other.run_id))["flow"] == "short"
    assert (await bo.got(f"/runs/{other.run_id}"))["door"] == "execbox"


async def test_names_are_no_sql(eve: Caller, bo: Caller, rid: str) -> None:
    short = flow([node("w", "wait", seconds=0)], name="short")
    await bo.begin(short, rid)
    odd = [
        f"{rid}'; DROP TABLE flow_runs;--",
        f"{rid}%",
        f"{rid}' OR '1'='1",
        f":run_id{rid}",
        f"{rid}\\",
        f"{rid} é😀",
    ]
    await eve.post("/flows", short)
    for each in odd:
        assert (await eve.get(f"/runs/{quote(each)}")).status_code == 404
    await eve.begin(short, odd[0])
    assert (await eve.ended(quote(odd[0])))["run_id"] == odd[0]
    assert {
        run["run_id"] for run in (await eve.got(f"/runs?before={quote(chr(0x10FFF0))}_x' OR 1=1--"))["runs"]
    } <= set(odd)
    assert (await eve.got(f"/flows?after={quote(chr(39))} OR 1=1--"))["flows"] in (
        [],
        [(await eve.got("/flows"))["flows"][0]],
    )
    for name in ("../x", "a/b", "a'b", "openapi.json", "x" * 300):
        failed(
            await eve.post("/flows", flow([node("w", "wait", seconds=0)], name=name)), 400, "INVALID_REQUEST"
        )
    assert (await bo.ended(rid))["status"] == "completed"


async def test_an_ability_of_another_is_unknown(
    place: Station, operator: Caller, bo: Caller, rid: str
) -> None:
    eve = await place.user(operator, f"eve-{rid}", ("rep", "abilities"))
    owner = await place.user(operator, f"bo-{rid}", ("rep", "abilities"))
    added = await owner.post("/my/abilities", ability(place.upstream.url(""), ability_id="private_one"))
    assert added.status_code == 201, added.text
    nodes = [
        node("a", "ability.execute", ability="private_one", params={}),
        node("b", "ability.execute", ability="nobodys", params={}),
    ]
    why = await tried(eve, rid, nodes)
    assert why["a"]["message"].replace("private_one", "") == why["b"]["message"].replace("nobodys", "")


# --- what may be reached ---


async def test_no_request_of_a_step_comes_home(
    place: Station, operator: Caller, eve: Caller, rid: str
) -> None:
    """The server itself listens on loopback, where one other port is allowed."""
    port = urlsplit(operator.server.url).port
    urls = [
        f"http://127.0.0.1:{port}/health",
        f"http://localhost:{port}/health",
        f"http://0.0.0.0:{port}/health",
        f"http://[::1]:{port}/health",
        f"http://[::ffff:127.0.0.1]:{port}/health",
        f"http://2130706433:{port}/health",
        f"http://0x7f.1:{port}/health",
        f"http://127.0.0.1.nip.io:{port}@169.254.169.254/latest/meta-data/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        f"http://{place.upstream.address}@127.0.0.1:{port}/health",
        f"http://127.0.0.1:{port}\\@{place.upstream.address}/",
    ]
    nodes = [node(f"u{at}", "http.get", 5_000, url=url) for at, url in enumerate(urls)]
    smuggled = {"X": "a\r\nHost: internal", "Y\r\nHost": "internal", "Z": "\0"}
    nodes += [
        node(f"h{at}", "http.get", 5_000, url=place.upstream.url("/smuggled"), headers={name: value})
        for at, (name, value) in enumerate(smuggled.items())
    ]
    began = time.monotonic()
    why = await tried(eve, rid, nodes)
    assert time.monotonic() - began < PATIENCE / 2
    assert not any("root:" in json.dumps(each) or '"ok"' in json.dumps(each) for each in why.values())
    assert place.upstream.asked["/smuggled"] == 0
