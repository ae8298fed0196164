"""Flows for a server, and its answers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from tests.doors.rep.stations import Caller
from tests.flows import flow, node
from tests.processes import PATIENCE

OPERATOR = "operator"
WAIT = flow([node("w", "wait", seconds=0)], name="short")
LONG = flow([node("w", "wait", seconds=600)], name="long")


def failed(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, code), body
    assert body["success"] is False
    error: dict[str, Any] = body["error"]
    return error


async def approvals(caller: Caller, rid: str, step_id: str | None = None) -> list[dict[str, Any]]:
    """Waits until there are any, or that of a step."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found: list[dict[str, Any]] = (await caller.got(f"/runs/{rid}/approvals"))["approvals"]
            if any(step_id in (None, each["step_id"]) for each in found):
                return found
            await asyncio.sleep(0.01)
