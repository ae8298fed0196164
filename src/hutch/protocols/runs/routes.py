"""HTTP routes for the runs of all protocols."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from hutch.errors import HutchError, ResumeError, SearchTimeout
from hutch.http.auth import AccessControl, key_advice
from hutch.http.endpoint import HttpProtocol, RequestContext
from hutch.http.errors import ApiError
from hutch.http.lifecycle import cancel_on_disconnect
from hutch.http.middleware.run_headers import RUN_ID_HEADER
from hutch.http.requests import JsonBodyReader, query_flag, query_integer
from hutch.http.routing import PrefixRoute
from hutch.http.run_results import result_json
from hutch.http.sse import event_stream
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.kernel.kernel import Kernel
from hutch.protocols.runs.catalog import FlowState, FoundRun, RunCatalog, Visibility
from hutch.protocols.runs.events import MAX_FOLLOWERS, LiveEvents, TooManyFollowers, encoded_events
from hutch.protocols.runs.files import file_response
from hutch.protocols.runs.filters import parse_list_query
from hutch.protocols.runs.queued import add_run, queue_fields, queued_events, result_of
from hutch.protocols.runs.replay import (
    GATEWAY_SCOPE,
    NotReplayable,
    Replay,
    ReplayRequest,
    replay_modes,
    uses_server_tools,
)
from hutch.protocols.runs.responses import JsonBody, error_response
from hutch.protocols.runs.resume import ResumeHandlers, resume_error
from hutch.queue.models import KeyInUse
from hutch.queue.queue import RunQueue
from hutch.queue.requests import queue_error
from hutch.session.run import SUSPENDED
from hutch.session.tools.provider import Provider
from hutch.store.models import FlowRunHead, RunRow
from hutch.store.store import Store
from hutch.store.tables.queue.followers import Follower

# Protocols of runs from the command line and from Python. They have no scope, so all keys may see these runs.
_PROTOCOLS_OF_ALL_KEYS = ("cli", "python")

logger = logging.getLogger("hutch.runs.api")


class FlowRuns(Protocol):
    """Flow runs, which REP serves in its own format."""

    async def detail(self, run: FlowRunHead, common: dict[str, Any]) -> Response:
        """Responds with a flow run, and with the fields that all runs have in common."""

    async def events(self, context: RequestContext, run: FlowRunHead) -> ASGIApp: ...

    async def cancel(self, run: FlowRunHead) -> None: ...

    @property
    def resume_endpoint(self) -> ASGIApp:
        """Handles `POST /runs/{id}/resume` for flow runs."""


def routes(
    kernel: Kernel,
    store: Callable[[], Awaitable[Store]],
    flows: FlowRuns,
    flow_state: FlowState,
    gateway_tools: Callable[[], Awaitable[list[Provider]]],
    access: AccessControl,
    suspended_runs: SuspendedRuns,
    queue: RunQueue,
) -> list[BaseRoute]:
    """`flow_state` returns the state of a flow run that has not ended. `gateway_tools` returns the
    tools of the gateway, for replays of code that used them.
    """
    handlers = RunHandlers(kernel, store, flows, flow_state, gateway_tools, access, suspended_runs, queue)
    route = handlers.protocol.route
    return [
        route("/runs", GET=handlers.list, POST=handlers.add),
        route("/runs/{id}", GET=handlers.show),
        route("/runs/{id}/events", GET=handlers.events),
        route("/runs/{id}/result", GET=handlers.result),
        route("/runs/{id}/files/{name}", GET=handlers.file),
        route("/runs/{id}/cancel", POST=handlers.cancel),
        route("/runs/{id}/replay", POST=handlers.replay),
        route("/runs/{id}/resume", POST=handlers.resume),
        PrefixRoute("/calls/{token}", handlers.resumes.resolve, methods=["POST"]),
    ]


class RunHandlers:
    """Request handlers, one per route."""

    def __init__(
        self,
        kernel: Kernel,
        store: Callable[[], Awaitable[Store]],
        flows: FlowRuns,
        flow_state: FlowState,
        gateway_tools: Callable[[], Awaitable[list[Provider]]],
        access: AccessControl,
        suspended_runs: SuspendedRuns,
        queue: RunQueue,
    ) -> None:
        self._kernel = kernel
        self._queue = queue
        queue.open_events = self._open_events
        self._suspended_runs = suspended_runs
        self._flows = flows
        self._gateway_tools = gateway_tools
        self._access = access
        self._catalog = RunCatalog(store, lambda: kernel.active, flow_state)
        self.resumes = ResumeHandlers(kernel.settings, access, suspended_runs)
        self._replays: set[asyncio.Task[Any]] = set()
        settings = kernel.settings
        self._body = JsonBodyReader(settings.max_body_bytes, settings.request_seconds)
        self.protocol = HttpProtocol(
            name=None,
            access=access,
            logger=logger,
            convert=_own_error,
            render=lambda context, error: error_response(error),
        )

    async def list(self, context: RequestContext) -> Response:
        query = parse_list_query(context.request.query_params.multi_items())
        listing = self._catalog.list(query, _visibility(context))
        # Stop the search if the client disconnects.
        body = await cancel_on_disconnect(context.request.receive, listing, self._access)
        return JsonBody(body)

    async def add(self, context: RequestContext) -> Response:
        return await add_run(context, await self._body.read_object(context.request), self._queue)

    async def show(self, context: RequestContext) -> ASGIApp:
        found = await self._find(context)
        if found.flow is not None:
            return await self._flows.detail(found.flow, await self._catalog.flow_fields(found.flow))
        return JsonBody(await self._detail(found))

    async def _detail(self, found: FoundRun) -> dict[str, Any]:
        detail = await self._catalog.detail(found)
        if found.row is not None:
            modes = replay_modes(found.row, await self._catalog.content(found.row))
            if found.row.outcome == SUSPENDED:
                is_ours = await self._suspended_runs.background.is_continued_here(found.row.run_id)
                detail["tools_elsewhere"] = not is_ours
        else:
            modes = {"same": False, "recorded": False, "reason": "This run has not ended yet."}
        if found.has_ended_queue and (queued := await self._queue.find(detail["run_id"])) is not None:
            detail |= {"queue": queue_fields(queued), "result": await result_of(self._queue, queued)}
        return {**detail, "replay": modes}

    async def events(self, context: RequestContext) -> ASGIApp:
        found = await self._find(context)
        if found.flow is not None:
            return await self._flows.events(context, found.flow)
        after = query_integer(context.query, "after", 0, 2**53, minimum=0)
        last_event_id = context.request.headers.get("last-event-id", "").strip()
        if last_event_id.isascii() and last_event_id.isdecimal():
            after = int(last_event_id[:18])
        detail = await self._catalog.detail(found)
        if found.queued is not None:

            async def find() -> tuple[FoundRun, dict[str, Any]]:
                found = await self._find(context)
                return found, await self._catalog.detail(found)

            return event_stream(queued_events(find, detail, after, self._queue, self._access))
        try:
            active = found.active
            follower = (
                LiveEvents(None, detail, after) if active is None else LiveEvents.of_active(*active, after)
            )
        except TooManyFollowers:
            message = (
                f"{MAX_FOLLOWERS} clients follow this run already. Close one, or read GET /runs/ID instead."
            )
            raise ApiError("busy", message, headers={"Retry-After": "1"}) from None
        return event_stream(encoded_events(follower, self._access))

    def _open_events(self, follower: Follower) -> LiveEvents | None:
        """Returns the events of a run in progress for a follower at another server."""
        active = self._kernel.active.get(follower.run_id)
        if active is None:
            return None
        try:
            return LiveEvents.of_active(*active, follower.after, follower.offset)
        except TooManyFollowers:
            return None

    async def cancel(self, context: RequestContext) -> Response:
        found = await self._find(context)
        status: str | None = "cancelling"
        if found.flow is not None:
            await self._flows.cancel(found.flow)
        elif found.queued is not None:
            status = await self._queue.cancel(found.queued)
        elif found.active is not None:
            if (queued := await self._queue.find(context.path_param("id"))) is not None:
                await self._queue.cancel(queued)
            found.active[1].stop()
        elif found.row is not None:
            status = await self._cancel_stored(found.row)
        if status is None:
            raise ApiError("conflict", f"Run {context.path_param('id')!r} has ended")
        return JsonBody({"ok": True, "run_id": context.path_param("id"), "status": status})

    async def _cancel_stored(self, row: RunRow) -> str | None:
        """Cancels a suspended run. Returns its new status, or None if the run has ended."""
        runs = self._suspended_runs
        if row.outcome == SUSPENDED and await runs.ends.cancel(row.run_id, row.owner):
            return "cancelled"
        if row.outcome == SUSPENDED and await runs.ends.request_cancel(row.run_id, row.owner):
            return "cancelling"
        return None

    async def result(self, context: RequestContext) -> Response:
        """Returns the stored result of an asynchronous or suspended run. Clients that
        disconnected fetch it here.
        """
        found = await self._find(context)
        run_id = context.path_param("id")
        if found.has_ended_queue and (body := await self._queue.result(run_id)) is not None:
            return Response(body, media_type="application/json")
        if found.row is None:
            raise ApiError("conflict", f"Run {run_id!r} has not ended yet")
        try:
            result = await self._suspended_runs.ends.result(run_id, found.row.owner)
        except ResumeError:
            message = (
                f"The result of run {run_id!r} is not stored: only results of asynchronous and suspended"
                " runs are stored"
            )
            raise ApiError("not_found", message) from None
        if result is None:
            raise ApiError("conflict", f"Run {run_id!r} has not ended yet")
        return Response(await result_json(result), media_type="application/json")

    async def file(self, context: RequestContext) -> Response:
        """Returns a recorded file of a run."""
        found = await self._find(context)
        content = {} if found.row is None else await self._catalog.content(found.row)
        return file_response(content.get("files", ()), context.path_param("name"))

    async def resume(self, context: RequestContext) -> ASGIApp:
        found = await self._find(context)
        if found.flow is not None:
            return self._flows.resume_endpoint
        run_id = context.path_param("id")
        if found.row is None:
            raise ApiError("conflict", f"Run {run_id!r} is running")
        self._check_scope(context, found.row.protocol)
        return await self.resumes.resume(context, run_id, found.row.owner)

    def _check_scope(self, context: RequestContext, protocol: str) -> None:
        if not context.caller.may(protocol) and protocol not in _PROTOCOLS_OF_ALL_KEYS:
            raise ApiError("forbidden", f"This key lacks the scope {protocol}")

    async def replay(self, context: RequestContext) -> Response:
        body = await self._body.read_object(context.request, optional=True)
        try:
            request = msgspec.convert(body, ReplayRequest)
        except msgspec.ValidationError as error:
            raise ApiError("invalid_request", f"body: {error}") from None
        found = await self._find(context)
        if found.row is None:
            reason = "it is a flow run" if found.flow is not None else "it has not ended yet"
            raise NotReplayable(f"Run {context.path_param('id')!r} cannot be replayed: {reason}.")
        self._check_scope(context, found.row.protocol)
        content = await self._catalog.content(found.row)
        needs_tools = request.mode == "same" and uses_server_tools(found.row, content)
        if needs_tools and not context.caller.may(GATEWAY_SCOPE):
            raise ApiError(
                "forbidden", f"This key lacks the scope {GATEWAY_SCOPE}; {key_advice(GATEWAY_SCOPE)}"
            )
        replay = Replay(
            self._kernel,
            found.row,
            content,
            request,
            owner=context.owner,
            tools=await self._gateway_tools() if needs_tools else [],
        )
        run_id = replay.run.id
        headers = {RUN_ID_HEADER: run_id, "Location": f"/runs/{quote(run_id)}"}
        if query_flag(context.query, "wait"):
            await cancel_on_disconnect(context.request.receive, replay.execute(), self._access)
            ended = await self._catalog.find(run_id, Visibility())
            if ended is None:
                raise ApiError("unavailable", "The replay has ended, and its record cannot be read")
            return JsonBody(await self._detail(ended), 200, headers)
        self._start(replay)
        body = {"run_id": run_id, "parent_run_id": found.row.run_id, "mode": request.mode}
        return JsonBody(body, 202, headers)

    def _start(self, replay: Replay) -> None:
        async def work() -> None:
            try:
                with self._access.track_request():
                    await cancel_on_disconnect(None, replay.execute(), self._access)
            except HutchError as error:
                logger.warning("the replay %s ended: %s", replay.run.id, error)

        task = asyncio.create_task(work(), name=f"hutch replay {replay.run.id}")
        self._replays.add(task)
        task.add_done_callback(self._replays.discard)

    async def _find(self, context: RequestContext) -> FoundRun:
        run_id = context.path_param("id")
        found = await self._catalog.find(run_id, _visibility(context))
        if found is None:
            raise ApiError("not_found", f"There is no run {run_id[:200]!r}")
        return found


def _visibility(context: RequestContext) -> Visibility:
    identity = context.caller.identity
    if identity is None:
        return Visibility()
    return Visibility(identity.user.id, (*identity.key.scopes, *_PROTOCOLS_OF_ALL_KEYS))


def _own_error(error: Exception) -> ApiError | None:
    match error:
        case NotReplayable():
            return ApiError("conflict", str(error))
        case KeyInUse():
            return queue_error(error)
        case ResumeError():
            return resume_error(error)
        case SearchTimeout():
            return ApiError("busy", str(error), headers={"Retry-After": "1"})
    return None
