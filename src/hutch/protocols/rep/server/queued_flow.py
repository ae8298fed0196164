"""Asynchronous runs of stored flows: `POST /runs` with the kind `flow`, schedules and triggers."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hutch.http.errors import ApiError
from hutch.kernel.fair_use import FairUse
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.server import requests
from hutch.protocols.rep.server.requests import StartRunBody
from hutch.protocols.rep.server.run_start import RunStarter
from hutch.protocols.rep.server.supervisor import FlowSupervisor
from hutch.queue.attempt import Attempt
from hutch.queue.models import HandlerResult, QueueCaller, RunRequest
from hutch.store.models import FlowRunRow

PROTOCOL = "rep"


class _StoredStart(msgspec.Struct, frozen=True):
    flow: str
    start: dict[str, Any] = {}


class QueuedFlow:
    """A flow run has its own journal, from which any server resumes it. The queue only starts it and waits
    for its end.
    """

    kind = "flow"
    protocol = PROTOCOL
    is_repeatable = True
    has_hidden_effects = False

    def __init__(self, flows: FlowSupervisor, starter: RunStarter, fair_use: FairUse) -> None:
        self._flows = flows
        self._starter = starter
        self._fair_use = fair_use

    async def parse(self, body: dict[str, Any], caller: QueueCaller) -> RunRequest:
        start = dict(body)
        name = start.pop("flow", None)
        if not isinstance(name, str):
            raise ApiError("invalid_request", "request.flow: expected the name of a stored flow")
        if "run_id" in start:
            raise ApiError("invalid_request", "request.run_id: asynchronous runs get their own id")
        try:
            await self._starter.prepare(caller, name, requests.parse_start_run(start))
        except InvalidFlow as error:
            raise ApiError("invalid_request", str(error)) from None
        stored = _StoredStart(name, start)
        return RunRequest(
            kind=self.kind, protocol=self.protocol, label=name, body=msgspec.json.encode(stored)
        )

    async def run(self, attempt: Attempt) -> HandlerResult:
        run_id = attempt.run_id
        attempt.on_cancel = lambda: self._flows.cancel(run_id)
        store = await self._flows.store()
        run = await store.journal.head(run_id)
        if run is None:
            run = await self._start(attempt)
        elif run.is_over and run.status != "completed" and attempt.row.attempts > 1:
            await self._flows.resume(run)

        async def is_over() -> bool:
            head = await store.journal.head(run_id)
            return head is None or head.is_over

        # Free the slot of the queue, because the supervisor limits how many flows run at once.
        attempt.park()
        await attempt.wait_until_over(is_over)
        ended = await store.journal.get(run_id)
        if ended is None:
            raise ApiError("not_found", "The flow run was deleted")
        outcome = ended.outcome or ended.status
        body = {
            "ok": outcome == "ok",
            "run_id": run_id,
            "flow": ended.flow,
            "version": ended.version,
            "outcome": outcome,
            "summary": None if ended.summary is None else json.loads(ended.summary),
        }
        return HandlerResult(ok=outcome == "ok", outcome=outcome, body=msgspec.json.encode(body))

    async def _start(self, attempt: Attempt) -> FlowRunRow:
        stored = msgspec.json.decode(attempt.request, type=_StoredStart)
        body = StartRunBody(**{**stored.start, "run_id": attempt.run_id})
        caller, user_name = attempt.caller, None
        if caller.scopes is not None:
            user = await (await self._flows.store()).users.by_id(caller.owner)
            user_name = None if user is None else user.name
        row = await self._starter.prepare(
            caller, stored.flow, body, user_name=user_name, key_id=caller.key_id
        )
        async with self._fair_use.count(caller.owner):
            return await self._flows.start_run(row)
