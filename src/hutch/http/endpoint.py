"""ASGI endpoint of all protocols: checks method, authentication and limits, calls the handler, renders
errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from hutch.http.auth import AccessControl, Caller
from hutch.http.errors import ApiError, Refusal, method_not_allowed, to_api_error
from hutch.http.routing import PrefixRoute

if TYPE_CHECKING:
    from hutch.vault.api_keys import Identity


class RequestContext:
    """A request and its caller."""

    caller: Caller
    """Not set before authentication, so error responses cannot rely on it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.started = asyncio.get_running_loop().time()

    @property
    def owner(self) -> str:
        return self.caller.owner

    @property
    def identity(self) -> Identity:
        """The user and the key. Set only for protocols with `users_only`."""
        assert self.caller.identity is not None
        return self.caller.identity

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    def path_param(self, name: str) -> str:
        return str(self.request.path_params[name])


def elapsed_ms(started: float) -> int:
    """Returns the milliseconds since `started`, which is a time of the event loop."""
    return int((asyncio.get_running_loop().time() - started) * 1000)


Handler = Callable[[RequestContext], Awaitable[ASGIApp]]


async def _no_limits(context: RequestContext) -> None:
    pass


def _no_own_errors(error: Exception) -> ApiError | None:
    return None


@dataclass(frozen=True, kw_only=True)
class HttpProtocol:
    """Properties of one protocol: access rules, limits and the format of errors."""

    name: str | None
    """Name of the protocol, and the scope that a user's key needs; None if every key has access."""
    access: AccessControl
    logger: logging.Logger
    render: Callable[[RequestContext, ApiError], ASGIApp]
    """Builds the response for an error."""
    convert: Callable[[Exception], ApiError | None] = _no_own_errors
    """Converts exceptions that only this protocol has. Returns None for other exceptions, which
    `errors.to_api_error` converts.
    """
    check: Callable[[RequestContext], Awaitable[None]] = _no_limits
    """Checks limits after authentication, before the body is read. Raises Busy, RateLimited or ApiError."""
    users_only: bool = False
    operator_only: bool = False
    allow_any_origin: bool = False
    allow_scripts: bool = False
    """True if sandboxed scripts have access."""
    allow_while_draining: bool = False
    """True if requests are accepted during the shutdown. The shutdown does not wait for them."""

    def route(self, path: str, **handlers: Handler) -> BaseRoute:
        """Returns a route with one handler per method."""
        return PrefixRoute(path, Endpoint(self, handlers))

    def to_api_error(self, error: Exception) -> ApiError:
        return self.convert(error) or to_api_error(error, self.logger)

    async def authenticate(self, request: Request) -> Caller:
        """Returns the caller. Raises ApiError if access is denied."""
        if self.operator_only:
            refusal = self.access.check(
                request, allow_any_origin=self.allow_any_origin, allow_scripts=self.allow_scripts
            )
            caller = refusal or Caller(self.access.owner())
        else:
            caller = await self.access.authenticate(
                request,
                self.name,
                allow_any_origin=self.allow_any_origin,
                allow_scripts=self.allow_scripts,
                users_only=self.users_only,
            )
        if isinstance(caller, Refusal):
            raise caller.error()
        return caller


class Endpoint:
    """ASGI application for one path. Each request counts as active until its response is sent."""

    def __init__(self, protocol: HttpProtocol, handlers: Mapping[str, Handler]) -> None:
        """`handlers` has one handler per method. The handler for GET also gets HEAD requests."""
        self._protocol = protocol
        self._handlers = handlers
        self.methods = frozenset(handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        protocol = self._protocol
        context = RequestContext(Request(scope, receive))
        with ExitStack() as stack:
            try:
                if not protocol.allow_while_draining:
                    stack.enter_context(protocol.access.track_request())
                response = await self._respond(context)
            except ClientDisconnect:
                response = Response()
            except Exception as error:
                response = protocol.render(context, protocol.to_api_error(error))
            await response(scope, receive, send)

    async def _respond(self, context: RequestContext) -> ASGIApp:
        request = context.request
        handler = self._handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise method_not_allowed(request.url.path, request.method, self.methods)
        context.caller = await self._protocol.authenticate(request)
        await self._protocol.check(context)
        return await handler(context)


def public_json_route(path: str, body: Mapping[str, Any], access: AccessControl) -> BaseRoute:
    """Returns a route with a constant response for everyone."""
    content = JSONResponse(body).body

    async def show(request: Request) -> Response:
        return access.deny(request, public=True) or Response(content, media_type="application/json")

    return PrefixRoute(path, show)
