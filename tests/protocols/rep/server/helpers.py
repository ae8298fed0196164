"""Flows for the server tests, and helpers for its responses."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from tests.protocols.rep.flow_server import FlowClient
from tests.support.flows import flow, node
from tests.support.processes import TIMEOUT_SECONDS

OPERATOR = "operator"
WAIT = flow([node("w", "wait", seconds=0)], name="short")
LONG = flow([node("w", "wait", seconds=600)], name="long")


def assert_error(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    body = response.json()
    assert (response.status_code, body["error"]["code"]) == (status, code), body
    assert body["success"] is False
    error: dict[str, Any] = body["error"]
    return error


async def wait_for_approvals(
    client: FlowClient, rid: str, step_id: str | None = None
) -> list[dict[str, Any]]:
    """Waits until a step asks for approval. If a step is given, waits for this step."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            found: list[dict[str, Any]] = (await client.get_json(f"/runs/{rid}/approvals"))["approvals"]
            if any(step_id in (None, each["step_id"]) for each in found):
                return found
            await asyncio.sleep(0.01)
