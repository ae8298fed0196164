"""Reads what the record of a run contains from before the run was suspended."""

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
    """Returns the log lines and calls in the record of a suspended run. None if they were not recorded, or
    the record was not written yet.
    """
    try:
        content = await store.runs.content(run_id)
        return None if content is None else msgspec.json.decode(content, type=RecordedPart)
    except (HutchError, msgspec.DecodeError) as error:
        # The run continues. Its record has only what comes now.
        logger.warning("the record of run %s from before it was suspended cannot be read: %s", run_id, error)
        return None


def approval_waits(session: SavedSession, answered: Container[str]) -> list[Wait]:
    """Returns how long the calls have waited that needed an approval and have their results now."""
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
