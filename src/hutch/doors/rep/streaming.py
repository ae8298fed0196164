"""Server-sent events: what a run does, from its journal, for who looks on and comes back for the rest."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from hutch.doors.presence import while_there
from hutch.doors.rep import holders
from hutch.doors.rep.flows import ORIGIN
from hutch.doors.rep.tail import batches
from hutch.errors import Busy, HutchError
from hutch.store.rows import FlowRunHead, RunRow

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from hutch.doors.gate import Gate
    from hutch.store.journal import Journal

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    # nginx would hold events back until it has a page of them.
    "x-accel-buffering": "no",
}
HEARTBEAT_SECONDS = 15.0
"""After so long a silence a comment tells proxies that somebody is still there."""
# When to come back after the connection is lost, in milliseconds.
_HELLO = b"retry: 1000\n\n"
_HEARTBEAT = b": still running\n\n"


class EventStream:
    """The events of one run after a number, and its end; an application of its own."""

    def __init__(self, journal: Journal, run: FlowRunHead | RunRow, after: int, gate: Gate) -> None:
        self._journal = journal
        self._run = run
        self._after = after
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        if scope["method"] != "HEAD":
            # Whoever is cut off comes back, to this server or another, and says how far it was.
            with suppress(ClientDisconnect, Busy, HutchError):
                await while_there(receive, self._send_all(send), self._gate)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        async def say(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        await say(_HELLO)
        if isinstance(self._run, FlowRunHead) and not await self._send_events(self._run, say):
            return
        await say(await self._last())

    async def _send_events(self, run: FlowRunHead, say: Any) -> bool:
        """Whether there is nothing more to come."""
        loop = asyncio.get_running_loop()
        silent_since = loop.time()
        waits = run.origin == ORIGIN
        async with aclosing(batches(self._journal, run.run_id, after=self._after, waits=waits)) as coming:
            async for batch in coming:
                if batch:
                    await say(b"".join(event(each["type"], each, number) for number, each in batch))
                    silent_since = loop.time()
                elif self._gate.draining:
                    return False
                elif loop.time() - silent_since > HEARTBEAT_SECONDS:
                    await say(_HEARTBEAT)
                    silent_since = loop.time()
        return True

    async def _last(self) -> bytes:
        """How it ended, or that nobody goes on with it."""
        if isinstance(self._run, RunRow):
            status = "completed" if self._run.outcome == "ok" else "failed"
            return event("end", {"run_id": self._run.run_id, "status": status, "outcome": self._run.outcome})
        whole = await self._journal.get(self._run.run_id)
        found = whole or self._run
        summary = None if whole is None or whole.summary is None else json.loads(whole.summary)
        told = {"run_id": found.run_id, "status": found.status, "outcome": found.outcome, "summary": summary}
        return event("end" if found.is_over else "interrupted", {**told, "state": holders.state(found)})


def event(name: str, value: dict[str, Any], number: int | None = None) -> bytes:
    """JSON as we write it has no line breaks. Names are ours, or a kind's: those may have any."""
    safe = "".join(each for each in name if each.isprintable())
    id = "" if number is None else f"id: {number}\n"
    return f"{id}event: {safe}\ndata: {json.dumps(value)}\n\n".encode()
