"""Flows that try to exceed the key's scopes, to read other users' data, and to reach forbidden addresses."""

from __future__ import annotations

import json
import time
from urllib.parse import quote, urlsplit

import pytest
from tests.hostile.flows.helpers import MARK, assert_error, flow_of_attempts, run_attempts
from tests.protocols.abilities.harness import ability
from tests.protocols.rep.flow_server import FlowClient, FlowServer
from tests.store.factories import add_runs, make_run
from tests.support.flows import flow, node
from tests.support.processes import TIMEOUT_SECONDS

pytestmark = pytest.mark.anyio


# --- scopes ---


async def test_flow_cannot_use_protocols_outside_the_scopes_of_the_key(eve: FlowClient, rid: str) -> None:
    code = node("c", "code.run", code="return 1")
    assert_error(await eve.post("/flows", flow([code], name="code")), 403, "FORBIDDEN")
    assert_error(
        await eve.post("/flows", flow([node("s", "shell.run", command="id")])), 400, "INVALID_REQUEST"
    )
    inner = [
        flow([code]),
        flow([node("f", "flow.run", flow=flow([code]), inputs={})]),
        flow([node("s", "shell.run", command="id")]),
        flow([node("t", "tool.execute", package="x", name="y", params={})]),
    ]
    await eve.start_run(
        flow_of_attempts(
            [node(f"f{at}", "flow.run", flow=f"$input.flows[{at}]", inputs={}) for at in range(len(inner))]
        ),
        rid,
        inputs={"flows": inner},
    )
    outputs = (await eve.wait_for_end(rid))["summary"]["outputs"]
    assert len(outputs) == len(inner)
    assert all(
        "there is no kind" in json.dumps(each) or "not allowed" in json.dumps(each)
        for each in outputs.values()
    )
    # The step is also refused inside a nested flow.
    await eve.start_run(flow([node("f", "flow.run", flow=flow([code]), inputs={})], name="inner"), f"{rid}-2")
    assert (await eve.wait_for_end(f"{rid}-2"))["outcome"] == "step_failed"


async def test_key_with_fewer_scopes_cannot_resume_a_run(
    server: FlowServer, operator: FlowClient, rid: str
) -> None:
    ada = await server.user(operator, f"ada-{rid}", ("rep", "execbox"))
    less = await server.user(operator, f"ada-{rid}", ("rep",))
    await ada.start_run(flow([node("c", "code.run", code="throw new Error()")], name="code"), rid)
    assert (await less.wait_for_end(rid))["status"] == "failed"
    assert_error(await less.post(f"/runs/{rid}/resume"), 403, "FORBIDDEN")
    assert_error(await less.post("/flows/code/runs", {"run_id": rid}), 403, "FORBIDDEN")
    assert (await ada.post(f"/runs/{rid}/resume")).status_code == 202


async def test_client_cannot_set_runtime_options(eve: FlowClient, rid: str) -> None:
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
        assert option in assert_error(answer, 400, "INVALID_REQUEST")


# --- other users' data ---


async def test_other_users_runs_and_flows_are_invisible(eve: FlowClient, bo: FlowClient, rid: str) -> None:
    ask = flow([node("ask", "approve", message=MARK)], name=f"f-{rid}")
    await bo.start_run(ask, rid, inputs={"secret": MARK})
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
        assert assert_error(answer, 404, "NOT_FOUND").replace(rid, "") == assert_error(
            unknown, 404, "NOT_FOUND"
        ).replace("0" * len(rid), "")
    for method in ("GET", "DELETE"):
        assert_error(await eve.call(method, f"/flows/f-{rid}"), 404, "NOT_FOUND")
    assert_error(await eve.post(f"/flows/f-{rid}/runs", {}), 404, "NOT_FOUND")
    assert (await eve.get_json("/runs"))["runs"] == []
    assert (await eve.get_json("/flows")) == {"flows": []}
    # If eve names a flow in a step, the server looks only for a flow of eve, and she has none.
    why = await run_attempts(eve, f"{rid}-eve", [node("f", "flow.run", flow=f"f-{rid}", inputs={})])
    assert "There is no flow" in why["f"]["message"]
    assert (await bo.get_json(f"/runs/{rid}"))["status"] in ("pending", "running")
    await bo.post(f"/runs/{rid}/cancel")


async def test_duplicate_run_id_reveals_and_hides_nothing(
    server: FlowServer, operator: FlowClient, eve: FlowClient, bo: FlowClient, rid: str
) -> None:
    short = flow([node("w", "wait", seconds=0)], name="short")
    await bo.start_run(short, rid, inputs={"secret": MARK})
    await eve.post("/flows", short)
    for inputs in ({"secret": MARK}, {}):
        answer = await eve.post("/flows/short/runs", {"run_id": rid, "inputs": inputs})
        assert MARK not in assert_error(answer, 409, "CONFLICT")
    # A flow run with the id of another owner's run must not hide that run, even if that run has another
    # protocol.
    owner = await server.store.users.by_name(f"bo-{rid}")
    assert owner is not None
    other = make_run(run_id=f"{rid}-execbox", owner=owner.id, protocol="cli")
    await add_runs(server.store, [other])
    await eve.start_run(short, other.run_id)
    assert (await eve.wait_for_end(other.run_id))["flow"] == "short"
    assert (await bo.get_json(f"/runs/{other.run_id}"))["protocol"] == "cli"


async def test_names_cannot_inject_sql(eve: FlowClient, bo: FlowClient, rid: str) -> None:
    short = flow([node("w", "wait", seconds=0)], name="short")
    await bo.start_run(short, rid)
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
    await eve.start_run(short, odd[0])
    assert (await eve.wait_for_end(quote(odd[0])))["run_id"] == odd[0]
    for name in ("label", "text", "tool", "host", "owner", "code", "engine", "parent", "not_label"):
        for value in ("' OR 1=1--", "%", ":owner", "x') OR ('1'='1"):
            found = (await eve.get_json(f"/runs?{name}={quote(value)}"))["runs"]
            assert {run["run_id"] for run in found} <= set(odd)
    assert_error(await eve.get(f"/runs?cursor={quote(chr(39))} OR 1=1--"), 400, "INVALID_REQUEST")
    assert (await eve.get_json(f"/flows?after={quote(chr(39))} OR 1=1--"))["flows"] in (
        [],
        [(await eve.get_json("/flows"))["flows"][0]],
    )
    for name in ("../x", "a/b", "a'b", "x" * 300):
        assert_error(
            await eve.post("/flows", flow([node("w", "wait", seconds=0)], name=name)), 400, "INVALID_REQUEST"
        )
    assert (await bo.wait_for_end(rid))["status"] == "completed"


async def test_other_users_ability_is_unknown(
    server: FlowServer, operator: FlowClient, bo: FlowClient, rid: str
) -> None:
    eve = await server.user(operator, f"eve-{rid}", ("rep", "abilities"))
    owner = await server.user(operator, f"bo-{rid}", ("rep", "abilities"))
    added = await owner.post("/my/abilities", ability(server.upstream.url(""), ability_id="private_one"))
    assert added.status_code == 201, added.text
    nodes = [
        node("a", "ability.execute", ability="private_one", params={}),
        node("b", "ability.execute", ability="nobodys", params={}),
    ]
    why = await run_attempts(eve, rid, nodes)
    assert why["a"]["message"].replace("private_one", "") == why["b"]["message"].replace("nobodys", "")


# --- forbidden addresses ---


async def test_step_cannot_request_the_server_itself_or_internal_addresses(
    server: FlowServer, operator: FlowClient, eve: FlowClient, rid: str
) -> None:
    """The policy allows one port of loopback, and refuses the port of the server."""
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
        f"http://{server.upstream.address}@127.0.0.1:{port}/health",
        f"http://127.0.0.1:{port}\\@{server.upstream.address}/",
    ]
    nodes = [node(f"u{at}", "http.get", 5_000, url=url) for at, url in enumerate(urls)]
    smuggled = {"X": "a\r\nHost: internal", "Y\r\nHost": "internal", "Z": "\0"}
    nodes += [
        node(f"h{at}", "http.get", 5_000, url=server.upstream.url("/smuggled"), headers={name: value})
        for at, (name, value) in enumerate(smuggled.items())
    ]
    began = time.monotonic()
    why = await run_attempts(eve, rid, nodes)
    assert time.monotonic() - began < TIMEOUT_SECONDS / 2
    assert not any("root:" in json.dumps(each) or '"ok"' in json.dumps(each) for each in why.values())
    assert server.upstream.request_counts["/smuggled"] == 0
