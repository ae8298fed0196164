"""The door's routes: flows are kept by name, run, looked at, cancelled and approved."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from hutch.doors.gate import Gate, Visitor, key_for
from hutch.doors.limits import Rate, retry_after
from hutch.doors.paths import Lane
from hutch.doors.refusals import Refusal
from hutch.doors.rep import flow as flow_module
from hutch.doors.rep import inputs as inputs_module
from hutch.doors.rep import named, openapi, replies, requests, rpc
from hutch.doors.rep.care import Said
from hutch.doors.rep.flow import Flow
from hutch.doors.rep.flows import ORIGIN, Flows, NotWaiting
from hutch.doors.rep.journal import OPERATOR, text_of
from hutch.doors.rep.permitted import SCOPES, kinds_for, scopes_for
from hutch.doors.rep.problems import InvalidFlow, Problem
from hutch.doors.rep.replies import Failed, answer
from hutch.doors.rep.streaming import EventStream
from hutch.errors import Busy, HutchError, InvalidText, RateLimited, StoreError
from hutch.store.rows import FlowRow, FlowRunHead, FlowRunRow, RunRow, now
from hutch.store.store import Store

logger = logging.getLogger("hutch.rep")

DOOR = "rep"
DOCUMENT = "openapi.json"
MOST_BYTES = rpc.MAX_LINE_BYTES - 64 * 1024
"""Of what a runtime is given at once, and some room for the rest of the line."""
MOST_ASKING = 100
"""Of the steps that wait for an approval, so many are told at once, unless more are asked for."""
_NONE_ASK: dict[str, Any] = {"approvals": [], "approvals_total": 0}


class Visit:
    """A request on its way, and whose it is."""

    def __init__(self, request: Request, visitor: Visitor, store: Store) -> None:
        self.request = request
        self.visitor = visitor
        self.store = store

    @property
    def owner(self) -> str:
        return self.visitor.owner

    @property
    def owners(self) -> set[str]:
        """Whoever runs the server has two names."""
        return {self.owner} if self.visitor.caller is not None else {self.owner, *OPERATOR}

    def part(self, name: str) -> str:
        return str(self.request.path_params[name])


Work = Callable[[Visit], Awaitable[ASGIApp]]


def routes(flows: Flows, gate: Gate) -> list[BaseRoute]:
    door = Door(flows, gate)
    document = openapi.document(flows.settings)

    async def described(request: Request) -> Response:
        return gate.refuse(request, public=True) or JSONResponse(document)

    def lane(path: str, **works: Work) -> BaseRoute:
        return Lane(path, Errand(door, works))

    return [
        Lane(f"/flows/{DOCUMENT}", described),
        lane("/flows", GET=door.flows, POST=door.register),
        lane("/flows/{name}", GET=door.flow, DELETE=door.remove),
        lane("/flows/{name}/runs", POST=door.begin),
        lane("/runs", GET=door.runs),
        lane("/runs/{id}", GET=door.run),
        lane("/runs/{id}/events", GET=door.events),
        lane("/runs/{id}/cancel", POST=door.cancel),
        lane("/runs/{id}/resume", POST=door.resume),
        lane("/runs/{id}/approvals", GET=door.approvals),
        lane("/runs/{id}/approvals/{step_id:path}", POST=door.approve),
    ]


class Errand:
    """A path and what is done there: an application of its own, to be there until its answer is sent."""

    def __init__(self, door: Door, works: Mapping[str, Work]) -> None:
        self._door = door
        self._works = works

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._door.gate.visit():
                await (await self._answer(Request(scope, receive)))(scope, receive, send)
        except Busy as busy:
            await as_failed(busy).response()(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        """Whatever comes of a request, as something that can be sent."""
        try:
            work = self._works.get("GET" if request.method == "HEAD" else request.method)
            if work is None:
                raise _not_allowed(request, self._works)
            visitor = await self._door.gate.visitor(request, DOOR)
            if isinstance(visitor, Refusal):
                raise Failed(replies.REFUSED[visitor.status], visitor.message, headers=visitor.headers)
            return await work(Visit(request, visitor, await self._door.store()))
        except ClientDisconnect:
            return Response()  # nobody hears it
        except Exception as error:
            return as_failed(error).response()


class Door:
    """What is done at each path."""

    def __init__(self, flows: Flows, gate: Gate) -> None:
        self.gate = gate
        self._flows = flows
        self._settings = flows.settings
        self._rate = Rate.of_flows(flows.settings.flow_rate_limit)

    async def count(self, visit: Visit) -> None:
        """For what makes work or stays; whoever runs the server has no limit. Raises RateLimited."""
        if (caller := visit.visitor.caller) is not None:
            await self._rate.check(caller.key, visit.store.limits)

    async def store(self) -> Store:
        return await self._flows.store()

    # --- flows ---

    async def register(self, visit: Visit) -> Response:
        """Keeps a flow, or a new version of it. The same one again is no new version."""
        await self.count(visit)
        document = await requests.read_object(visit.request, self._settings)
        flow = await asyncio.to_thread(flow_module.read, document)
        if flow.name == DOCUMENT:
            raise requests.invalid([Problem("flow.name", f"{DOCUMENT} is the name of something else here")])
        _check_kinds(flow, visit.visitor)
        before = await visit.store.flows.get(visit.owner, flow.name)
        row = await visit.store.flows.put(visit.owner, flow.name, text_of(document), now())
        is_new = before is None or row.version != before.version
        return answer(replies.flow(row), 201 if is_new else 200, {"Location": f"/flows/{flow.name}"})

    async def flows(self, visit: Visit) -> Response:
        limit = requests.number(visit.request, "limit", 100, requests.MOST_LISTED)
        after = requests.text(visit.request, "after")
        found = await visit.store.flows.list(visit.owner, limit=limit, after=after)
        more = {"next": found[-1].name} if len(found) == limit else {}
        return answer({"flows": [replies.flow(each) for each in found], **more})

    async def flow(self, visit: Visit) -> Response:
        version = requests.number(visit.request, "version", 0, 2**31)
        return answer(replies.whole_flow(await self._flow(visit, version or None)))

    async def remove(self, visit: Visit) -> Response:
        if not await visit.store.flows.remove(visit.owner, visit.part("name")):
            raise replies.no_flow(visit.part("name"))
        return answer({"name": visit.part("name")})

    async def _flow(self, visit: Visit, version: int | None) -> FlowRow:
        name = visit.part("name")
        found = await visit.store.flows.get(visit.owner, name, version)
        if found is None:
            raise replies.no_flow(name)
        return found

    # --- runs ---

    async def begin(self, visit: Visit) -> Response:
        """Begins a run. The same id, flow and inputs again: the same run, which may be over by now."""
        await self.count(visit)
        asked = requests.begin(await requests.read_object(visit.request, self._settings, optional=True))
        kept = await self._flow(visit, asked.version)
        flow = await named.read(kept.document)
        if problems := inputs_module.check(flow, asked.inputs):
            raise requests.invalid(problems)
        others = await named.named_flows(flow, visit.store.flows, visit.owner)
        for each in (flow, *others.values()):
            _check_kinds(each, visit.visitor)
        caller = visit.visitor.caller
        options = {
            "trace_id": str(uuid.uuid4()),
            "user": None if caller is None else caller.user.name,
            "files": False,
            "kinds": kinds_for(visit.visitor),
            "flows": {name: each.document for name, each in others.items()},
            "concurrency": asked.concurrency,
            "timeout": asked.timeout,
        }
        row = FlowRunRow(
            run_id=asked.run_id or str(uuid.uuid4()),
            owner=visit.owner,
            flow=flow.name,
            version=kept.version,
            origin=ORIGIN,
            created_at=now(),
            document=kept.document,
            inputs=text_of(asked.inputs),
            options=text_of({name: value for name, value in options.items() if value is not None}),
        )
        if (size := len(row.document) + len(row.inputs) + len(row.options)) > MOST_BYTES:
            message = (
                f"the flow, those that it runs and the inputs have {size} bytes; the most is {MOST_BYTES}"
            )
            raise Failed("PAYLOAD_TOO_LARGE", message)
        found = await self._flows.begin(row)
        if found is not row and (
            found.owner not in visit.owners
            or found.flow != row.flow
            or json.loads(found.inputs) != asked.inputs
        ):
            raise Failed("CONFLICT", f"run_id: there is a run {row.run_id!r} of something else already")
        return answer(
            replies.head(found), 202 if found is row else 200, {"Location": f"/runs/{found.run_id}"}
        )

    async def runs(self, visit: Visit) -> Response:
        """Runs of flows, the newest first."""
        limit = requests.number(visit.request, "limit", 100, requests.MOST_LISTED)
        created, _, run_id = requests.text(visit.request, "before").partition("_")
        before = (created, run_id) if run_id else None
        found = await visit.store.journal.list(*sorted(visit.owners), limit=limit, before=before)
        more = {"next": f"{found[-1].created_at}_{found[-1].run_id}"} if len(found) == limit else {}
        return answer({"runs": [{**replies.head(each), **self._state(each)} for each in found], **more})

    async def run(self, visit: Visit) -> Response:
        found = await self._any_run(visit)
        if isinstance(found, RunRow):
            return answer(replies.other_run(found))
        whole = await self._whole(visit, found)
        counts = await visit.store.journal.counts(found.run_id)
        return answer({**replies.flow_run(whole, counts, await self._asking(whole)), **self._state(whole)})

    def _state(self, run: FlowRunHead) -> dict[str, str]:
        """Of a run that waits for nobody but us: it is not `interrupted`."""
        return {"state": "waiting"} if self._flows.is_aside(run.run_id) and not run.is_over else {}

    async def events(self, visit: Visit) -> ASGIApp:
        found = await self._any_run(visit)
        given = visit.request.headers.get("last-event-id", "").strip()
        after = requests.number(visit.request, "after", 0, 2**53, least=0)
        if given.isascii() and given.isdecimal():
            after = int(given[:18])
        return EventStream(visit.store.journal, found, after, self.gate)

    async def cancel(self, visit: Visit) -> Response:
        found = await self._any_run(visit)
        if isinstance(found, FlowRunHead):
            await self._flows.cancel(found.run_id)
        return answer({"ok": True, "run_id": found.run_id})

    async def resume(self, visit: Visit) -> Response:
        """Goes on with a run that failed or was cancelled: what failed is done again, the rest is not."""
        await self.count(visit)
        found = await self._whole(visit, await self._flow_run(visit))
        if found.origin != ORIGIN and visit.visitor.caller is not None:
            raise Failed("CONFLICT", f"Run {found.run_id!r} was begun by hand: `hutch flow resume`")
        if found.status == "completed":
            raise Failed("CONFLICT", f"Run {found.run_id!r} is complete: there is nothing to go on with")
        kinds = set(json.loads(found.options).get("kinds", ()))
        if not kinds <= {*kinds_for(visit.visitor)}:
            message = f"Run {found.run_id!r} was begun with a key that is for more than this"
            raise Failed("FORBIDDEN", f"{message}; {key_for(*scopes_for(kinds))}")
        await self._flows.resume(found)
        return answer({"ok": True, "run_id": found.run_id}, 202)

    # --- approvals ---

    async def approvals(self, visit: Visit) -> Response:
        limit = requests.number(visit.request, "limit", MOST_ASKING, requests.MOST_LISTED)
        offset = requests.number(visit.request, "offset", 0, 2**31, least=0)
        found = await self._any_run(visit)
        asking = _NONE_ASK if isinstance(found, RunRow) else await self._asking(found, limit, offset)
        return answer({"run_id": found.run_id, **asking})

    async def _asking(self, run: FlowRunHead, limit: int = MOST_ASKING, offset: int = 0) -> dict[str, Any]:
        """The steps that wait for somebody's word: how many, and some of them."""
        listed = await self._flows.questions(run, limit, offset)
        # Only where there may be others are they counted.
        is_all = offset == 0 and len(listed) < limit
        total = len(listed) if is_all else await self._flows.count_questions(run)
        return {"approvals": listed, "approvals_total": total}

    async def approve(self, visit: Visit) -> Response:
        word = requests.word(await requests.read_object(visit.request, self._settings))
        found = await self._flow_run(visit)
        step_id = visit.part("step_id")
        if not await self._flows.asks(found, step_id):
            raise Failed("CONFLICT", f"Step {step_id[:200]!r} waits for no approval")
        caller = visit.visitor.caller
        # A user speaks for nobody else.
        by = word.by if caller is None else caller.user.name
        await self._flows.approve(found, step_id, Said(word.approved, by, word.reason))
        return answer({"ok": True, "run_id": found.run_id, "step_id": step_id, "approved": word.approved})

    async def _whole(self, visit: Visit, run: FlowRunHead) -> FlowRunRow:
        """With what it was given and gave, which may be long."""
        found = await visit.store.journal.get(run.run_id)
        if found is None:
            raise replies.no_run(run.run_id)
        return found

    async def _flow_run(self, visit: Visit) -> FlowRunHead:
        found = await self._any_run(visit)
        if isinstance(found, RunRow):
            raise Failed("CONFLICT", f"Run {found.run_id!r} is no run of a flow")
        return found

    async def _any_run(self, visit: Visit) -> FlowRunHead | RunRow:
        """A run of any door. Those of other doors are written a moment after their end."""
        run_id = visit.part("id")
        # Not by whether there is one: who names a run of theirs like another's hides nothing by it.
        flow_run = await visit.store.journal.head(run_id)
        if flow_run is not None and flow_run.owner in visit.owners:
            return flow_run
        found = await visit.store.runs.get(run_id)
        if found is None:
            await visit.store.later.flush()
            found = await visit.store.runs.get(run_id)
        if found is None or found.owner not in visit.owners:
            raise replies.no_run(run_id)
        return found


def _check_kinds(flow: Flow, visitor: Visitor) -> None:
    """Raises Failed for steps that nobody may use here, or that the key is not for."""
    allowed = kinds_for(visitor)
    for node in flow.nodes.values():
        if node.kind in allowed:
            continue
        if node.kind in SCOPES:
            wanted = key_for(*scopes_for(each.kind for each in flow.nodes.values()))
            raise Failed("FORBIDDEN", f"{node.path}.type: this key is not for {SCOPES[node.kind]}; {wanted}")
        known = ", ".join(allowed)
        raise requests.invalid([Problem(f"{node.path}.type", f"expected one of {known}, got {node.kind!r}")])


def _not_allowed(request: Request, works: Mapping[str, Work]) -> Failed:
    allowed = ", ".join(sorted(works))
    message = f"{request.url.path} does not take {request.method}; it takes {allowed}"
    return Failed("METHOD_NOT_ALLOWED", message, headers={"Allow": allowed})


def as_failed(error: Exception) -> Failed:
    """What the caller is told of an exception; of those that nobody foresaw, only that there was one."""
    match error:
        case Failed():
            return error
        case InvalidFlow():
            return requests.invalid(error.problems)
        case InvalidText():
            return Failed("INVALID_REQUEST", error.message)
        case NotWaiting():
            return Failed("CONFLICT", error.message)
        case RateLimited():
            return Failed("RATE_LIMITED", str(error), headers=retry_after(error.retry_after))
        case Busy():
            return Failed("BUSY", str(error), headers=retry_after(error.retry_after))
        case StoreError():
            logger.error("the store failed: %s", error)
            message = "The store cannot be used; the server's log says why"
            return Failed("BUSY", message, headers={"Retry-After": "1"})
        case HutchError():
            logger.error("a request failed: %s", error)
        case _:
            logger.error("a request failed", exc_info=error)
    return Failed("INTERNAL_ERROR", "The server failed; its log says why")
