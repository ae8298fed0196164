"""Steps that wait: for a time, or for somebody's word."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed

MOST_SECONDS = 31 * 24 * 3600.0
MOST_MESSAGE = 10_000


class Wait(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So long."""

    seconds: Annotated[float, Meta(ge=0, le=MOST_SECONDS)]


async def _wait(call: Call) -> Any:
    params: Wait = call.params
    await asyncio.sleep(params.seconds)
    return {"seconds": params.seconds}


class Approve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody is asked."""

    message: Annotated[str, Meta(max_length=MOST_MESSAGE)]


async def _approve(call: Call) -> Any:
    params: Approve = call.params
    answer = call.context.approvals.wait(call.step_id, lambda: call.emit("approval", message=params.message))
    said = await answer
    if not said.approved:
        by = f" by {said.by}" if said.by else ""
        reason = f": {said.reason}" if said.reason else "."
        details = {"approved": False, "by": said.by, "reason": said.reason}
        raise StepFailed(f"It was not approved{by}{reason}", retriable=False, details=details)
    return {"approved": True, "by": said.by}


WAIT = Kind("wait", _wait, params=Wait, waits=True)
APPROVE = Kind("approve", _approve, params=Approve, waits=True)
