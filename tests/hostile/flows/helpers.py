"""Helpers for the hostile flow tests."""

from __future__ import annotations

from typing import Any

import httpx2
from tests.protocols.rep.flow_server import FlowClient
from tests.protocols.rep.server import helpers
from tests.support.flows import edge, flow, node

MAX_FLOWS = 4
MARK = "do-not-write-this-down"


def assert_error(answer: httpx2.Response, status: int, code: str) -> str:
    """Checks status and code of an error response. Returns its message."""
    message: str = helpers.assert_error(answer, status, code)["message"]
    return message


def flow_of_attempts(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a flow in which every attempt is an independent step that is expected to fail. When the step
    `ID` has failed, the step `ID-why` outputs its error.
    """
    reasons = [node(f"{item['id']}-why", "dsl.emit", e=f"$step.{item['id']}.error") for item in nodes]
    edges = [edge(item["id"], f"{item['id']}-why", on="failure") for item in nodes]
    return flow([*nodes, *reasons], edges, name="attempts")


async def run_attempts(eve: FlowClient, rid: str, nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Runs the attempts and checks that all attempts fail. Returns the errors."""
    await eve.start_run(flow_of_attempts(nodes), rid)
    run = await eve.wait_for_end(rid)
    assert run["status"] == "completed", run
    outputs = run["summary"]["outputs"]
    assert set(outputs) == {f"{item['id']}-why" for item in nodes}, outputs
    return {id.removesuffix("-why"): item["e"] for id, item in outputs.items()}
