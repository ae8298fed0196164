"""Ownership of flows and runs, key scopes and rate limits."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocols.rep.flow_server import FlowClient, FlowServer, open_flow_server
from tests.protocols.rep.server.helpers import OPERATOR, WAIT, assert_error, wait_for_approvals
from tests.store.factories import make_flow_run
from tests.support.flows import flow, node

from hutch.settings import Settings

# --- owners ---


async def test_flows_are_visible_to_their_owner_and_runs_also_to_the_operator(
    ann: FlowClient, bo: FlowClient, operator: FlowClient, rid: str
) -> None:
    ask = flow([node("ask", "approve", message="Really?")], name="asking")
    await ann.start_run(ask, rid)
    await wait_for_approvals(ann, rid)
    decision = {"approved": True}
    for other in (bo, operator):
        assert_error(await other.get("/flows/asking"), 404, "NOT_FOUND")
        assert_error(await other.post("/flows/asking/runs"), 404, "NOT_FOUND")
        assert_error(await other.call("DELETE", "/flows/asking"), 404, "NOT_FOUND")
    unknown = assert_error(await bo.get("/runs/unknown"), 404, "NOT_FOUND")["message"]
    for path in ("", "/events", "/approvals"):
        foreign = assert_error(await bo.get(f"/runs/{rid}{path}"), 404, "NOT_FOUND")["message"]
        assert foreign.replace(rid, "unknown") == unknown
    for path, body in (
        ("/cancel", None),
        ("/resume", None),
        ("/retry", {"from": "ask"}),
        ("/approvals/ask", decision),
    ):
        assert_error(await bo.post(f"/runs/{rid}{path}", body), 404, "NOT_FOUND")
    assert rid not in [each["run_id"] for each in (await bo.get_json("/runs"))["runs"]]
    assert (await ann.get_json(f"/runs/{rid}"))["status"] == "running"
    assert rid in [each["run_id"] for each in (await operator.get_json("/runs?status=running"))["runs"]]
    assert (await operator.get_json(f"/runs/{rid}/approvals"))["approvals_total"] == 1
    await operator.post(f"/runs/{rid}/cancel")
    await ann.wait_for_end(rid)


async def test_key_is_valid_only_for_its_scopes(server: FlowServer, operator: FlowClient) -> None:
    assert_error(await FlowClient(operator.server, operator.client).get("/flows"), 401, "UNAUTHORIZED")
    assert_error(
        await FlowClient(operator.server, operator.client, "hk_x").get("/flows"), 401, "UNAUTHORIZED"
    )
    wrong = await server.user(operator, "narrow", ("abilities",))
    message = assert_error(await wrong.get("/flows"), 403, "FORBIDDEN")["message"]
    assert message == (
        "This key lacks the scope rep (it has: abilities); create a key with `hutch key add USER --scope rep`"
    )


@pytest.mark.parametrize(
    ("kind", "given", "scope"),
    [
        ("code.run", {"code": "1"}, "execbox"),
        ("mcp.call", {"server": "s", "tool": "t", "arguments": {}}, "toolscript"),
        ("toolscript.run", {"code": "1"}, "toolscript"),
        ("tool.execute", {"package": "p", "name": "n", "params": {}}, "tpmjs"),
        ("ability.execute", {"ability": "a", "params": {}}, "abilities"),
        ("for_each", {"items": [], "step": {"type": "code.run", "with": {"code": "1"}}}, "execbox"),
    ],
)
async def test_flow_cannot_use_protocols_outside_the_scopes_of_the_key(
    server: FlowServer,
    operator: FlowClient,
    ann: FlowClient,
    kind: str,
    given: dict[str, Any],
    scope: str,
    rid: str,
) -> None:
    place, inner_kind = "type", kind
    if kind == "for_each":
        place, inner_kind = "with.step.type", given["step"]["type"]
    ir = flow([node("s", kind, **given)], name="sneaky")
    message = assert_error(await ann.post("/flows", ir), 403, "FORBIDDEN")["message"]
    assert message == (
        f"graph.nodes[0].{place}: this key lacks the scope {scope};"
        f" create a key with `hutch key add USER --scope rep --scope {scope}`"
    )
    # The flow is also refused if it is passed as an input to another flow.
    outer = flow([node("o", "flow.run", flow="$input.ir", inputs={})], name="outer")
    await ann.start_run(outer, rid, inputs={"ir": ir})
    ended = await ann.wait_for_end(rid)
    assert f"there is no kind '{inner_kind}'" in ended["summary"]["error"]["message"]
    wide = await server.user(operator, "wide", ("rep", scope))
    assert (await wide.post("/flows", ir)).status_code in (200, 201)
    # A flow stored with one key cannot be run with a key of fewer scopes.
    narrow = await server.user(operator, "wide", ("rep",))
    assert_error(await narrow.post("/flows/sneaky/runs"), 403, "FORBIDDEN")


async def test_run_is_not_resumed_with_a_key_of_fewer_scopes(
    server: FlowServer, operator: FlowClient, rid: str
) -> None:
    wide = await server.user(operator, "resuming", ("rep", "execbox", "tpmjs"))
    server.upstream.fail("/resumed", 1)
    await wide.start_run(server.steps("resumed", name="resumed"), rid)
    assert (await wide.wait_for_end(rid))["state"] == "failed"
    narrow = await server.user(operator, "resuming", ("rep",))
    for path, body in (("resume", None), ("retry", {"from": "resumed"})):
        message = assert_error(await narrow.post(f"/runs/{rid}/{path}", body), 403, "FORBIDDEN")["message"]
        assert "create a key with `hutch key add USER --scope rep --scope execbox --scope tpmjs`" in message


async def test_operator_sees_runs_under_both_names(
    server: FlowServer, operator: FlowClient, rid: str
) -> None:
    by_hand = make_flow_run("local", run_id=f"{rid}-local", origin="cli")
    assert await server.store.journal.add(by_hand)
    await operator.start_run(WAIT, rid)
    listed = [each["run_id"] for each in (await operator.get_json("/runs"))["runs"]]
    assert {rid, by_hand.run_id} <= {*listed}
    page = await operator.get_json("/runs?limit=1")
    rest = await operator.get_json(f"/runs?before={page['next']}")
    assert [each["run_id"] for each in page["runs"] + rest["runs"]] == listed
    await operator.wait_for_end(rid)


async def test_flow_of_a_user_cannot_read_files(ann: FlowClient, rid: str) -> None:
    await ann.start_run(flow([node("o", "flow.run", flow="../secret.json", inputs={})], name="files"), rid)
    assert "There is no flow" in (await ann.wait_for_end(rid))["summary"]["error"]["message"]


# --- limits ---


async def test_rate_limit_counts_registering_and_starting_but_not_reading(
    store_settings: Settings,
) -> None:
    async with (
        open_flow_server(store_settings, HUTCH_API_KEY=OPERATOR, HUTCH_FLOW_RATE_LIMIT="3") as server,
        server.running_server(key=OPERATOR) as operator,
    ):
        ann, bo = await server.user(operator, "ann"), await server.user(operator, "bo")
        assert (await ann.post("/flows", WAIT)).status_code == 201
        for number in range(2):
            assert (await ann.post("/flows/short/runs", {"run_id": f"r{number}"})).status_code == 202
        for path, body in (
            ("/flows", WAIT),
            ("/flows/short/runs", {}),
            ("/runs/r0/resume", None),
            ("/runs/r0/retry", {"from": "w"}),
        ):
            refused = await ann.post(path, body)
            message = assert_error(refused, 429, "RATE_LIMITED")["message"]
            assert "may register flows and start runs 3 times a minute" in message
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        # Each key has its own limit. Requests with another key are still accepted, whether the key belongs to
        # this user or to another user.
        again = await server.user(operator, "ann")
        assert (await again.post("/flows", WAIT)).status_code == 200
        assert (await bo.post("/flows", WAIT)).status_code == 201
        for _ in range(5):
            assert (await operator.post("/flows", WAIT)).status_code in (200, 201)
            for path in ("/flows", "/flows/short", "/runs", "/runs/r0", "/runs/r0/approvals"):
                await ann.get_json(path)
        assert (await ann.wait_for_end("r1"))["state"] == "completed"
        assert (await ann.post("/runs/r0/cancel")).status_code == 200
