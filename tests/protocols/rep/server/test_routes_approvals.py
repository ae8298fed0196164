"""Cancelling runs, and approving and rejecting steps."""

from __future__ import annotations

import asyncio

from tests.protocols.rep.flow_server import FlowClient, FlowServer
from tests.protocols.rep.server.helpers import assert_error, wait_for_approvals
from tests.support.flows import chain, flow, node
from tests.support.processes import TIMEOUT_SECONDS


async def test_cancel_ends_a_run_and_can_be_repeated(server: FlowServer, ann: FlowClient, rid: str) -> None:
    server.upstream.hold("/cancelled")
    await ann.start_run(server.steps("cancelled", "never", name="cancelling"), rid)
    await asyncio.to_thread(server.upstream.wait_for_request, "/cancelled")
    for _ in range(2):
        assert (await ann.post(f"/runs/{rid}/cancel")).json() == {
            "ok": True,
            "run_id": rid,
            "status": "cancelling",
        }
        ended = await ann.wait_for_end(rid)
        assert (ended["status"], ended["state"], ended["outcome"]) == ("failed", "cancelled", "cancelled")
        assert ended["summary"]["cancelled"] is True
    server.upstream.release("/cancelled")
    assert server.upstream.request_counts["/never"] == 0


async def test_step_waits_until_it_is_approved(ann: FlowClient, rid: str) -> None:
    inner = flow([node("deep", "approve", message="Deep?")], name="inner")
    nodes = [
        node("ask", "approve", message="Really?"),
        node("sub", "flow.run", flow=inner),
        node("end", "finish", outputs=["$step.ask", "$step.sub"]),
    ]
    await ann.start_run(flow(nodes, chain("ask", "sub", "end"), name="asking"), rid)
    [asked] = await wait_for_approvals(ann, rid)
    assert (asked["step_id"], asked["message"]) == ("ask", "Really?")
    shown = await ann.get_json(f"/runs/{rid}")
    assert (shown["approvals"], shown["state"], shown["waiting_for"]) == ([asked], "waiting", ["ask"])
    [listed] = (await ann.get_json("/runs?status=running"))["runs"]
    assert (listed["state"], listed["waiting_for"]) == ("waiting", ["ask"])
    assert_error(await ann.post(f"/runs/{rid}/approvals/other", {"approved": True}), 409, "CONFLICT")
    for wrong in ({}, {"approved": "yes"}, {"approved": True, "more": 1}, {"approved": True, "by": ""}):
        assert_error(await ann.post(f"/runs/{rid}/approvals/ask", wrong), 400, "INVALID_REQUEST")
    # The name in `by` is ignored, because users can approve only under their own names.
    response = await ann.post(f"/runs/{rid}/approvals/ask", {"approved": True, "by": "the boss"})
    assert response.json() == {"ok": True, "run_id": rid, "step_id": "ask", "approved": True}
    await wait_for_approvals(ann, rid, "sub/deep")
    await ann.post(f"/runs/{rid}/approvals/sub/deep", {"approved": True})
    first, second = (await ann.wait_for_end(rid))["summary"]["outputs"]
    assert first["approved"] is second["deep"]["approved"] is True
    assert first["by"].startswith("ann-")
    assert_error(await ann.post(f"/runs/{rid}/approvals/ask", {"approved": True}), 409, "CONFLICT")


async def test_approvals_are_paged_and_counted(ann: FlowClient, rid: str) -> None:
    names = [f"s{number:03}" for number in range(130)]
    await ann.start_run(flow([node(name, "approve", message="?") for name in names], name="many"), rid)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (await ann.get_json(f"/runs/{rid}"))["approvals_total"] < 130:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # there is no event to wait for
    whole = await ann.get_json(f"/runs/{rid}")
    assert [each["step_id"] for each in whole["approvals"]] == names[:100]
    rest = await ann.get_json(f"/runs/{rid}/approvals?limit=50&offset=100")
    assert ([each["step_id"] for each in rest["approvals"]], rest["approvals_total"]) == (names[100:], 130)
    assert_error(await ann.get(f"/runs/{rid}/approvals?limit=0"), 400, "INVALID_REQUEST")
    # A step that is not on the first page can be approved, too.
    assert (await ann.post(f"/runs/{rid}/approvals/s129", {"approved": True})).status_code == 200
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (await ann.get_json(f"/runs/{rid}/approvals"))["approvals_total"] != 129:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await ann.post(f"/runs/{rid}/cancel")
    await ann.wait_for_end(rid)


async def test_step_is_rejected(operator: FlowClient, rid: str) -> None:
    await operator.start_run(flow([node("ask", "approve", message="Really?")], name="refused"), rid)
    await wait_for_approvals(operator, rid)
    await operator.post(f"/runs/{rid}/approvals/ask", {"approved": False, "by": "Bo", "reason": "too dear"})
    assert "not approved by Bo: too dear" in (await operator.wait_for_end(rid))["summary"]["error"]["message"]
