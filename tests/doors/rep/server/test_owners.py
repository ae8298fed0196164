"""Whose flows and runs are whose, what a key is for, and how often."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doors.rep.server.answers import OPERATOR, WAIT, approvals, failed
from tests.doors.rep.stations import Caller, Station, station
from tests.flows import flow, node
from tests.store.made import a_flow_run

from hutch.settings import Settings

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
