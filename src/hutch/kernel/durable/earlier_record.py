"""Reads what was recorded of a run before its suspension. The final record contains these calls and logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Container
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import HutchError
from hutch.session.events.timeline import RecordedPart
from hutch.session.run import Wait
from hutch.session.suspension import SavedSession

if TYPE_CHECKING:
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")


async def recorded_part(store: Store, run_id: str) -> RecordedPart | None:
    """Returns the log lines and calls in the record of a suspended run. Returns None if they were not
    recorded, or if the record was not written yet.
    """
    try:
        content = await store.runs.content(run_id)
        return None if content is None else msgspec.json.decode(content, type=RecordedPart)
    except (HutchError, msgspec.DecodeError) as error:
        # The run continues without the earlier part of its record.
        logger.warning("the record of run %s from before it was suspended cannot be read: %s", run_id, error)
        return None


def approval_waits(session: SavedSession, answered: Container[str]) -> list[Wait]:
    """Returns the waits of calls that needed an approval and now have a result."""
    return [
        Wait(
            kind="approval",
            start_ms=call.start_ms,
            duration_ms=round(max(0.0, time.time() - call.started_at) * 1000, 3),
            subject=f"{call.provider}.{call.tool}",
        )
        for call in session.pending
        if call.question is not None and call.call_id in answered
    ]
