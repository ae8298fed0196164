"""HTTP routes of the gateway: module, tools, search, approvals, status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Scope

from hutch.http import responses
from hutch.http.auth import AccessControl, is_script
from hutch.http.endpoint import Endpoint, HttpProtocol, RequestContext
from hutch.http.errors import ApiError
from hutch.http.lifecycle import cancel_on_disconnect
from hutch.http.requests import RUN_HEADER, JsonBodyReader
from hutch.http.routing import CANONICAL_PATH, PrefixRoute, canonical_path
from hutch.http.sse import encode_comment, event_stream
from hutch.protocols.toolscript.gateway.approvals import Approvals
from hutch.protocols.toolscript.gateway.endpoints import (
    GatewayEndpoint,
    GatewayEndpoints,
    naming_tool,
    tool_name,
)
from hutch.protocols.toolscript.gateway.gateway import Gateway
from hutch.protocols.toolscript.gateway.schemas import (
    GatewayReply,
    api_error_reply,
    approval_body,
    encode_approval_event,
    json_reply,
    parse_answer,
)
from hutch.settings import Settings

PROTOCOL = "toolscript"
# Prefix of run ids that clients send. Any client with the token can choose such an id, and the prefix keeps
# it different from the ids of this server's own runs.
REMOTE_PREFIX = "remote:"
# Interval at which an event stream checks for a shutdown.
_DRAIN_POLL_SECONDS = 1.0
_MAX_ANSWER_BYTES = 64 * 1024

logger = logging.getLogger("hutch.toolscript")


def routes(gateway: Gateway, access: AccessControl, settings: Settings) -> list[BaseRoute]:
    """Returns all routes except `/health` and `/ready`, which all protocols share."""
    endpoints = GatewayEndpoints(gateway)
    protocol = HttpProtocol(name=PROTOCOL, access=access, logger=logger, allow_scripts=True, render=_render)
    # Allow these routes during a drain, because running calls may need them to import modules or for
    # approvals.
    during_drain = replace(protocol, allow_while_draining=True)
    without_scripts = replace(during_drain, check=_refuse_scripts)
    # Only the operator may decide on approvals, because a decision affects the calls of all users.
    operator = replace(without_scripts, operator_only=True)
    approvals = ApprovalHandlers(gateway.approvals, access, settings)
    tool_calls = ToolCallHandler(endpoints, access, settings)

    def route(path: str, endpoint: GatewayEndpoint) -> BaseRoute:
        async def handler(context: RequestContext) -> Response:
            etag = context.request.headers.get("if-none-match", "")
            return _response(await endpoint(context.query, etag))

        return PrefixRoute(path, Endpoint(during_drain, {"GET": handler}), methods=["GET"])

    async def status(context: RequestContext) -> Response:
        return _response(json_reply(await gateway.status()))

    return [
        ToolRoute("/tools/{name}", Endpoint(protocol, {"POST": tool_calls}), methods=["POST"]),
        PrefixRoute("/status", Endpoint(without_scripts, {"GET": status}), methods=["GET"]),
        *(route(path, endpoint) for path, endpoint in endpoints.by_path.items()),
        operator.route("/approvals", GET=approvals.list),
        operator.route("/approvals/events", GET=approvals.events),
        operator.route("/approvals/{id}", GET=approvals.show, POST=approvals.decide),
    ]


def application(gateway: Gateway, access: AccessControl, settings: Settings) -> ASGIApp:
    """Returns the gateway as a separate web application."""
    endpoints = GatewayEndpoints(gateway)

    async def health(request: Request) -> Response:
        return access.deny(request, public=True) or _response(endpoints.health(draining=access.is_draining))

    async def ready(request: Request) -> Response:
        if (refusal := access.deny(request, public=True)) is not None:
            return refusal
        has_names = access.check(request, allow_scripts=True) is None
        return _response(endpoints.ready(draining=access.is_draining, has_names=has_names))

    web = Starlette(
        routes=[
            PrefixRoute("/health", health),
            PrefixRoute("/ready", ready),
            *routes(gateway, access, settings),
        ],
        exception_handlers={
            HTTPException: responses.on_http_exception,
            Exception: responses.on_internal_error,
        },
    )
    web.router.default = responses.not_found_app
    web.router.redirect_slashes = False
    return web


class ToolRoute(PrefixRoute):
    """Route for tool names with any characters. Starlette does not match characters such as line breaks."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and canonical_path(scope["path"]).startswith("/tools/"):
            return super().matches({**scope, "path": self.path, CANONICAL_PATH: self.path})
        return Match.NONE, {}


def _run_id_of(connection: HTTPConnection) -> str | None:
    """Returns the id of the run that the request belongs to, or None."""
    label = connection.headers.get(RUN_HEADER)
    return None if label is None else f"{REMOTE_PREFIX}{label[:100]}"


async def _refuse_scripts(context: RequestContext) -> None:
    """Rejects requests of scripts, which carry the token. A script must not approve its own calls."""
    if is_script(context.request):
        raise ApiError("denied", f"Scripts have no access to {context.request.url.path}")


def _render(context: RequestContext, error: ApiError) -> Response:
    return _response(api_error_reply(error))


def _response(reply: GatewayReply) -> Response:
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return Response(reply.body, status_code=reply.status, headers=headers)


class ApprovalHandlers:
    def __init__(self, approvals: Approvals, access: AccessControl, settings: Settings) -> None:
        self._approvals = approvals
        self._access = access
        self._body = JsonBodyReader(_MAX_ANSWER_BYTES, settings.request_seconds)

    async def list(self, context: RequestContext) -> Response:
        return _response(json_reply([approval_body(approval) for approval in self._approvals.pending()]))

    async def show(self, context: RequestContext) -> Response:
        id = context.path_param("id")
        approval = self._approvals.find(id)
        if approval is None:
            raise self._no_approval(id)
        return _response(json_reply(approval_body(approval, full=True)))

    async def decide(self, context: RequestContext) -> Response:
        answer = parse_answer(await self._body.read_object(context.request, optional=True))
        id = context.path_param("id")
        identity = context.caller.identity
        decided_by = "operator" if identity is None else identity.user.name
        if not self._approvals.decide(id, msgspec.structs.replace(answer, decided_by=decided_by)):
            raise self._no_approval(id)
        return _response(json_reply({"id": id, "decision": answer.decision}))

    def _no_approval(self, id: str) -> ApiError:
        if self._approvals.was_decided(id):
            return ApiError("decided", f"{id!r} has already been decided")
        return ApiError("unknown_approval", f"There is no pending approval {id[:80]!r}")

    async def events(self, context: RequestContext) -> ASGIApp:
        return event_stream(self._encoded_events())

    async def _encoded_events(self) -> AsyncIterator[bytes]:
        with self._approvals.listen() as queue:
            yield encode_comment("approvals")
            while not self._access.is_draining:
                try:
                    async with asyncio.timeout(_DRAIN_POLL_SECONDS):
                        event = await queue.get()
                except TimeoutError:
                    continue
                if event is None:
                    return
                yield encode_approval_event(event)


class ToolCallHandler:
    """Calls a tool. Cancels the call if the client disconnects."""

    def __init__(self, endpoints: GatewayEndpoints, access: AccessControl, settings: Settings) -> None:
        self._endpoints = endpoints
        self._access = access
        self._body = JsonBodyReader(settings.max_body_bytes, settings.request_seconds)

    async def __call__(self, context: RequestContext) -> Response:
        request = context.request
        name = tool_name(request.scope.get("raw_path") or request.url.path.encode())
        with naming_tool(name):
            arguments = await self._body.read_object(request, optional=True)
        calling = self._endpoints.call(name, arguments, _run_id_of(request))
        return _response(await cancel_on_disconnect(request.receive, calling, self._access))
