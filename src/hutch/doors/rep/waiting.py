"""Which steps of a run wait for somebody's word, as they are told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hutch.store.journal import Entry


def waiting(asked: Iterable[Entry]) -> list[dict[str, Any]]:
    """Events by which steps asked, and which nobody has answered."""
    events = [json.loads(each.body) for each in asked]
    return [
        {"step_id": event["step_id"], "message": event.get("message"), "asked_at": event["timestamp"]}
        for event in events
    ]
