"""Runs that somebody has a word for: cancelled, approved and refused."""

from __future__ import annotations

import asyncio

from tests.doors.rep.server.answers import approvals, failed
from tests.doors.rep.stations import Caller, Station
from tests.flows import chain, flow, node
from tests.processes import PATIENCE


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
