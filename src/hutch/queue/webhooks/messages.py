"""Messages about the ends of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hutch.queue.models import Webhook
from hutch.queue.webhooks.signature import new_secret
from hutch.text import format_unix_time

if TYPE_CHECKING:
    from hutch.store.backends.base import SqlStatement
    from hutch.store.store import Store
    from hutch.store.tables.queue.queued_runs import EndOfRun, QueuedRunRow

MAX_RESULT_BYTES = 256 * 1024
"""Maximum size of a result in a message. The receiver has to fetch a larger result."""
DAY_MS = 86_400_000
"""Time for which the delivery of a message is retried."""


class StoredMessage(msgspec.Struct, frozen=True):
    url: str
    secret: str
    body: str


async def end_message(store: Store, row: QueuedRunRow, end: EndOfRun) -> SqlStatement | None:
    """Returns the statement that adds the message about the end of a run; None if the run has no webhook."""
    stored = await store.queued_runs.webhook(row.run_id)
    if stored is None:
        return None
    webhook = msgspec.json.decode(stored, type=Webhook)
    event = "run.completed" if end.outcome == "ok" else "run.failed"
    message = StoredMessage(
        url=webhook.url,
        secret=webhook.secret or await owner_secret(store, row.owner),
        body=msgspec.json.encode(_payload(row, end, event, await store.queued_runs.now())).decode(),
    )
    return await store.webhooks.statement(
        f"msg_{row.run_id}_{row.generation}",
        row.run_id,
        row.owner,
        event,
        row.generation,
        msgspec.json.encode(message),
        DAY_MS,
    )


def _payload(row: QueuedRunRow, end: EndOfRun, event: str, now: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "run_id": row.run_id,
        "kind": row.kind,
        "label": row.label,
        "source": row.source,
        "status": "completed" if end.outcome == "ok" else "failed",
        "outcome": end.outcome,
        "attempts": row.attempts,
        "is_dead": end.state == "dead",
        "status_url": f"/runs/{row.run_id}",
    }
    if len(end.result) <= MAX_RESULT_BYTES:
        data["result"] = msgspec.Raw(end.result)
    return {"type": event, "timestamp": format_unix_time(now / 1000), "data": data}


async def owner_secret(store: Store, owner: str) -> str:
    """Returns the secret with which the messages of an owner are signed. Creates it on first use."""
    secret = await store.webhooks.secret(owner)
    if secret is None:
        await store.webhooks.put_secret(owner, new_secret(), replaces=False)
        secret = await store.webhooks.secret(owner)
    assert secret is not None
    return secret
