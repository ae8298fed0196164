"""The gateway's routes: the module, the tools, search, approvals, and how things are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from hutch.doors import refusals
from hutch.doors.gate import Gate, is_script
from hutch.doors.marks import RUN, RUN_HEADER
from hutch.doors.paths import CANONICAL, Lane, canonical
from hutch.doors.presence import while_there
from hutch.doors.toolscript.catalog import Catalog
from hutch.doors.toolscript.gateway import SEARCH_LIMIT, SEARCH_THRESHOLD, Gateway
from hutch.doors.toolscript.wire import (
    Unfit,
    answer_of,
    failed,
    fault,
    flag,
    json_answer,
    listing,
    number,
    raw_answer,
    read_object,
    result,
    sent,
    shown,
    text_answer,
)
from hutch.errors import Busy, HutchError, UpstreamError
from hutch.session.jsonvalue import NotJsonSafe, encode_value
from hutch.settings import Settings

DOOR = "toolscript"
# Of runs in another process, which whoever has the token can name as it likes.
REMOTE = "remote:"
MAX_RESULTS = 100
HEARTBEAT_SECONDS = 15.0
# How soon a stream of events notices that the server wants to end.
_LOOK_SECONDS = 1.0

Handler = Callable[[Request], Awaitable[Response]]


def routes(gateway: Gateway, gate: Gate, settings: Settings) -> list[BaseRoute]:
    """All but `/health`, which is everybody's: what the gateway has to say there is `gateway.health()`."""
    door = Door(gateway, gate, settings)

    def lane(path: str, handler: Handler, method: str = "GET", *, scripts: bool = False) -> BaseRoute:
        async def guarded(request: Request) -> Response:
            refused = await gate.turned_away(request, DOOR, scripts=True)
            return refused or _refuse_script(request, scripts) or await handler(request)

        return Lane(path, guarded, methods=[method])

    def operators(path: str, handler: Handler, method: str = "GET") -> BaseRoute:
        """Not for users' keys: whoever decides on calls decides on everybody's."""

        async def guarded(request: Request) -> Response:
            refused = gate.refuse(request, scripts=True)
            return refused or _refuse_script(request, False) or await handler(request)

        return Lane(path, guarded, methods=[method])

    return [
        ToolLane("/tools/called", Call(door), methods=["POST"]),
        Lane("/ready", door.ready),
        lane("/status", door.status),
        lane("/servers", door.servers, scripts=True),
        lane("/tools", door.tools, scripts=True),
        lane("/search", door.search, scripts=True),
        lane("/search/stats", door.stats, scripts=True),
        lane("/runtime/tools.ts", door.module, scripts=True),
        lane("/runtime/tools.d.ts", door.declarations, scripts=True),
        operators("/approvals", door.approvals),
        operators("/approvals/events", door.events),
        operators("/approvals/{id}", door.approval),
        operators("/approvals/{id}", door.decide, "POST"),
    ]


def application(gateway: Gateway, gate: Gate, settings: Settings) -> ASGIApp:
    """The gateway alone."""

    async def health(request: Request) -> Response:
        body = {**gateway.health(), **({"status": "draining"} if gate.draining else {})}
        return gate.refuse(request, public=True) or json_answer(body, 503 if gate.draining else 200)

    web = Starlette(
        routes=[Lane("/health", health), *routes(gateway, gate, settings)],
        exception_handlers={HTTPException: refusals.on_http_exception, Exception: refusals.on_fault},
    )
    web.router.default = refusals.nowhere
    web.router.redirect_slashes = False
    call = Call(Door(gateway, gate, settings))

    async def shortened(scope: Scope, receive: Receive, send: Send) -> None:
        """Scripts of this process call tools without a search for the route."""
        is_call = RUN in scope and scope["method"] == "POST" and scope["path"].startswith("/tools/")
        await (call if is_call else web)(scope, receive, send)

    return shortened


class ToolLane(Lane):
    """For names of any kind, line breaks included, which no pattern of Starlette's takes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and canonical(scope["path"]).startswith("/tools/"):
            return super().matches({**scope, "path": self.path, CANONICAL: self.path})
        return Match.NONE, {}


def run_of(connection: HTTPConnection) -> str | None:
    """The run on whose behalf somebody asks."""
    if RUN in connection.scope:
        run = connection.scope[RUN]
        return run if isinstance(run, str) and run else None
    label = connection.headers.get(RUN_HEADER)
    return None if label is None else f"{REMOTE}{label[:100]}"


def _refuse_script(request: Request, scripts: bool) -> Response | None:
    """A script's requests carry the token: it must not approve its own calls with it."""
    if scripts or not is_script(request):
        return None
    return fault(403, "denied", f"Scripts have no access to {request.url.path}")


class Door:
    """What the routes do."""

    def __init__(self, gateway: Gateway, gate: Gate, settings: Settings) -> None:
        self.gateway = gateway
        self.gate = gate
        self.settings = settings
        self._listed: tuple[Catalog, dict[str, bytes]] | None = None

    # --- how things are ---

    async def ready(self, request: Request) -> Response:
        connecting = self.gateway.connecting()
        ready = not connecting and not self.gate.draining
        body = {"ready": ready, "connecting": connecting}
        return self.gate.refuse(request, public=True) or json_answer(body, 200 if ready else 503)

    async def status(self, request: Request) -> Response:
        return json_answer(await self.gateway.status())

    async def servers(self, request: Request) -> Response:
        return json_answer(
            [
                {"name": each.name, "title": each.title, "instructions": each.instructions}
                for each in self.gateway.servers()
            ]
        )

    # --- tools ---

    async def tools(self, request: Request) -> Response:
        catalog = await self.gateway.catalog()
        if self._listed is None or self._listed[0] is not catalog:
            self._listed = (catalog, {each.qualified: listing(each) for each in catalog})
        listed = self._listed[1]
        chosen = catalog.filtered(request.query_params.get("filter"))
        return raw_answer(b"[" + b",".join(listed[each.qualified] for each in chosen) + b"]")

    async def module(self, request: Request) -> Response:
        if flag(request, "compact"):
            return await self.declarations(request)
        return text_answer(request, await self.gateway.module(request.query_params.get("filter")))

    async def declarations(self, request: Request) -> Response:
        only, compact = request.query_params.get("filter"), flag(request, "compact")
        return text_answer(request, await self.gateway.declarations(only, compact=compact))

    # --- search ---

    async def search(self, request: Request) -> Response:
        query = request.query_params.get("q", "").strip()
        if not query:
            return fault(400, "invalid_request", "q: expected what to search for")
        try:
            limit = number(request, "limit", SEARCH_LIMIT, 1, MAX_RESULTS)
            threshold = number(request, "threshold", SEARCH_THRESHOLD, 0, 1)
            found = await self.gateway.search(query, limit=int(limit), threshold=threshold)
        except Unfit as unfit:
            return unfit.response()
        except HutchError as error:
            return fault(503, "no_search", str(error))
        return raw_answer(b"[" + b",".join(map(result, found)) + b"]")

    async def stats(self, request: Request) -> Response:
        try:
            return json_answer(await self.gateway.stats())
        except HutchError as error:
            return fault(503, "no_search", str(error))

    # --- approvals ---

    async def approvals(self, request: Request) -> Response:
        return json_answer([shown(each) for each in self.gateway.approvals.pending()])

    async def approval(self, request: Request) -> Response:
        found = self.gateway.approvals.find(request.path_params["id"])
        return self._no_approval(request) if found is None else json_answer(shown(found, whole=True))

    async def decide(self, request: Request) -> Response:
        try:
            answer = answer_of(await read_object(request, 64 * 1024))
        except Unfit as unfit:
            return unfit.response()
        id = request.path_params["id"]
        if not self.gateway.approvals.decide(id, answer):
            return self._no_approval(request)
        return json_answer({"id": id, "decision": answer.decision})

    def _no_approval(self, request: Request) -> Response:
        id = request.path_params["id"]
        if self.gateway.approvals.was_decided(id):
            return fault(409, "decided", f"{id!r} does not wait for a decision any more")
        return fault(404, "unknown_approval", f"Nothing waits for a decision under the id {id[:80]!r}")

    async def events(self, request: Request) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=headers)

    async def _stream(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        with self.gateway.approvals.listen() as queue:
            yield b": approvals\n\n"
            spoke = loop.time()
            while not self.gate.draining:
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        event = await queue.get()
                except TimeoutError:
                    if loop.time() - spoke < HEARTBEAT_SECONDS:
                        continue
                    yield b": still here\n\n"
                else:
                    if event is None:
                        return
                    yield sent(event)
                spoke = loop.time()


class Call:
    """A call of a tool: an application of its own, to end the call when its client goes."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer = await self._door.gate.turned_away(request, DOOR, scripts=True)
        if answer is not None:
            await answer(scope, receive, send)
            return
        try:
            with self._door.gate.visit():
                await (await self._answered(request))(scope, receive, send)
        except Busy as busy:
            await fault(503, "busy", str(busy))(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        name = _called(request)
        server, _, tool = name.partition("__")
        try:
            arguments = await read_object(request, self._door.settings.max_body_bytes)
            calling = self._door.gateway.call_by_name(name, arguments, run=run_of(request))
            return raw_answer(encode_value(await while_there(request.receive, calling, self._door.gate)))
        except ClientDisconnect:
            return Response()  # nobody hears it
        except Unfit as unfit:
            return unfit.response(server=server, tool=tool, details=None)
        except UpstreamError as error:
            return failed(error)
        except NotJsonSafe as error:
            message = f"The result of {name} cannot be written as JSON: {error}"
            return failed(UpstreamError(server, tool, message, kind="invalid_result"))


def _called(request: Request) -> str:
    """The name in the path as it was sent: slashes in a name are its own."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    _, _, name = raw.partition(b"?")[0].partition(b"/tools/")
    return unquote_to_bytes(name.lstrip(b"/")).decode(errors="replace")
