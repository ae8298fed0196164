"""What the flows of those who mean harm have in common."""

from __future__ import annotations

from typing import Any

import httpx2
from tests.doors.rep.server import answers
from tests.doors.rep.stations import Caller
from tests.flows import edge, flow, node

PLACES = 4
MARK = "do-not-write-this-down"


def failed(answer: httpx2.Response, status: int, code: str) -> str:
    """What is said of it."""
    message: str = answers.failed(answer, status, code)["message"]
    return message


def attempts(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """A flow that tries all of these; that one fails keeps no other from it. Each fails into `SELF-why`."""
    whys = [node(f"{each['id']}-why", "dsl.emit", e=f"$step.{each['id']}.error") for each in nodes]
    edges = [edge(each["id"], f"{each['id']}-why", on="failure") for each in nodes]
    return flow([*nodes, *whys], edges, name="attempts")


async def tried(eve: Caller, rid: str, nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Why each failed. All did."""
    await eve.begin(attempts(nodes), rid)
    run = await eve.ended(rid)
    assert run["status"] == "completed", run
    outputs = run["summary"]["outputs"]
    assert set(outputs) == {f"{each['id']}-why" for each in nodes}, outputs
    return {id.removesuffix("-why"): each["e"] for id, each in outputs.items()}
