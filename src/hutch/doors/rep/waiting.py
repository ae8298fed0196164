"""Which steps of a run wait for somebody's word, by what its journal says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hutch.store.journal import Entry


def waiting(events: Iterable[Entry]) -> list[dict[str, Any]]:
    """In the order in which they began to wait. Of a run that goes on, steps ask anew."""
    found: dict[str, dict[str, Any]] = {}
    for each in events:
        event = json.loads(each.body)
        step_id = event["step_id"]
        if event["type"] == "approval":
            found[step_id] = {
                "step_id": step_id,
                "message": event.get("message"),
                "asked_at": event["timestamp"],
            }
        else:
            found.pop(step_id, None)
    return list(found.values())
