"""Routes of the web console: the page, signing in and out, the overview and the state of the system."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from hutch._version import __version__
from hutch.console import accounts, tool_catalog
from hutch.console.accounts import AccountStorage
from hutch.console.assets import asset_response, page_response
from hutch.console.load_history import LoadHistory
from hutch.console.tool_catalog import ToolCatalogServices
from hutch.http.auth import AccessControl
from hutch.http.endpoint import HttpProtocol, RequestContext
from hutch.http.errors import ERROR_KINDS, ApiError, Refusal
from hutch.http.requests import JsonBodyReader
from hutch.http.sse import encode_event, event_stream
from hutch.kernel.fair_use import FairUse
from hutch.sandbox.selftest.doctor import examine_machine
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.settings import SECRETS, Settings

logger = logging.getLogger("hutch.console")

_MAX_BODY_BYTES = 512 * 1024
_MAX_PROBLEMS = 50
_BODY_SECONDS = 10.0


@dataclass(frozen=True)
class ConsoleServices:
    """The components that the console shows."""

    settings: Settings
    setting_sources: Mapping[str, str]
    """Source of each setting. Settings that have their default values are missing."""
    verdict: SelfTestResult
    load: LoadHistory
    storage: AccountStorage
    catalog: ToolCatalogServices
    fair_use: FairUse
    check_code: Callable[[str], Awaitable[Sequence[Any]]]
    """Checks the types of a script against the tools of the MCP servers. Returns its problems."""


def routes(services: ConsoleServices, access: AccessControl) -> list[BaseRoute]:
    bodies = JsonBodyReader(_MAX_BODY_BYTES, _BODY_SECONDS)
    handlers = ConsoleHandlers(services, access, bodies)
    protocol = HttpProtocol(name=None, access=access, render=_render, logger=logger)
    operator = replace(protocol, check=_require_operator)
    # Require the scope `toolscript`, because problems of code reveal the tools of the operator's MCP servers.
    scripts = replace(protocol, name="toolscript")

    async def page(request: Request) -> Response:
        return access.deny(request, public=True) or page_response(request)

    async def api_docs(request: Request) -> Response:
        return access.deny(request, public=True) or page_response(request, "api.html")

    async def asset(request: Request) -> Response:
        return access.deny(request, public=True) or asset_response(request, request.path_params["name"])

    return [
        Route("/", page),
        Route("/assets/{name}", asset),
        Route("/docs/api", api_docs),
        Route("/console/session", handlers.session, methods=["GET"]),
        Route("/console/session", handlers.sign_in, methods=["POST"]),
        Route("/console/session", handlers.sign_out, methods=["DELETE"]),
        protocol.route("/console/links", POST=handlers.create_link),
        operator.route("/console/overview", GET=handlers.overview),
        operator.route("/console/overview/events", GET=handlers.overview_events),
        scripts.route("/console/check", POST=handlers.check),
        operator.route("/console/system", GET=handlers.system),
        operator.route("/console/doctor", POST=handlers.doctor),
        *tool_catalog.routes(services.catalog, operator, bodies),
        *accounts.routes(
            services.storage,
            replace(protocol, check=handlers.check_account_access),
            bodies,
            services.fair_use,
        ),
    ]


class ConsoleHandlers:
    def __init__(self, services: ConsoleServices, access: AccessControl, bodies: JsonBodyReader) -> None:
        self._services = services
        self._access = access
        self._bodies = bodies
        self._examining = asyncio.Lock()

    async def check_account_access(self, context: RequestContext) -> None:
        """Allows only the operator to manage users. Allows no changes on a server without a key, because
        every program on this machine counts as the operator there, and could issue itself a key that uses the
        credentials of a user.
        """
        await _require_operator(context)
        if context.request.method != "GET" and self._services.settings.api_key is None:
            raise ApiError(
                "forbidden",
                "A server without a key does not change users. Set HUTCH_API_KEY and start it again, or use"
                " `hutch user`, `hutch key` and `hutch credential`.",
            )

    async def session(self, request: Request) -> Response:
        """Returns the state of the browser's session: whether it is signed in, and as which user. Needs no
        key.
        """
        denied = self._access.deny(request, public=True)
        if denied is not None:
            return denied
        caller = await self._access.authenticate(request, None)
        if isinstance(caller, Refusal):
            reason = caller.message if self._access.api_key_of(request) else "This server needs an API key."
            return JSONResponse({"signedIn": False, "version": __version__, "reason": reason})
        session = self._access.browsers.find(request)
        return JSONResponse(
            {
                "signedIn": True,
                "version": __version__,
                "role": "admin" if caller.identity is None else "user",
                "user": None if caller.identity is None else caller.identity.user.name,
                "csrf": None if session is None else session.csrf_token,
                "needsKey": self._services.settings.api_key is not None,
            }
        )

    async def sign_in(self, request: Request) -> Response:
        """Starts a session from `{"link": TOKEN}` or `{"key": API_KEY}`."""
        refusal = self._access.check_origin(request)
        if refusal is not None:
            return _refused(refusal)
        try:
            body = await self._bodies.read_object(request)
        except ApiError as error:
            return _error(error)
        link, key = body.get("link"), body.get("key")
        if isinstance(link, str):
            key = self._access.browsers.redeem_link(link)
            if key is None:
                message = "This link was used or has expired. Run `hutch console` for another one."
                return _error(ApiError("unauthorized", message))
        if not isinstance(key, str) or not key:
            return _error(ApiError("invalid_request", "`key`: expected an API key. Send `link` or `key`."))
        caller = await self._access.authenticate_key(key, None)
        if isinstance(caller, Refusal):
            return _refused(caller)
        response = Response(status_code=204)
        self._access.browsers.sign_in(key, response, secure=request.url.scheme == "https")
        logger.info("a browser signed in", extra={"fields": {"owner": caller.owner}})
        return response

    async def sign_out(self, request: Request) -> Response:
        refusal = self._access.check_origin(request)
        if refusal is not None:
            return _refused(refusal)
        response = Response(status_code=204)
        self._access.browsers.sign_out(request, response)
        return response

    async def create_link(self, context: RequestContext) -> Response:
        """Returns the path of a one-time link that signs a browser in with the caller's key."""
        token = self._access.api_key_of(context.request)
        if not token:
            return JSONResponse({"path": "/"})
        return JSONResponse({"path": f"/#/sign-in/{self._access.browsers.create_link(token)}"})

    async def overview(self, context: RequestContext) -> Response:
        load = self._services.load
        return JSONResponse({"samples": msgspec.to_builtins(list(load.samples)), **load.totals()})

    async def overview_events(self, context: RequestContext) -> ASGIApp:
        return event_stream(self._samples())

    async def _samples(self) -> AsyncIterator[bytes]:
        load = self._services.load
        while not self._access.is_draining:
            sampled = load.sampled
            try:
                async with asyncio.timeout(5):
                    await sampled.wait()
            except TimeoutError:
                continue
            yield encode_event("sample", msgspec.json.encode([load.samples[-1], load.totals()]))

    async def check(self, context: RequestContext) -> Response:
        """Checks the code in `{"code"}` for the editor, and returns its problems."""
        body = await self._bodies.read_object(context.request)
        code = body.get("code")
        if not isinstance(code, str):
            raise ApiError("invalid_request", "`code`: expected a string. Send the code to check.")
        problems = await self._services.check_code(code)
        return JSONResponse({"problems": msgspec.to_builtins(problems[:_MAX_PROBLEMS])})

    async def system(self, context: RequestContext) -> Response:
        services = self._services
        defaults = Settings()
        return JSONResponse(
            {
                "version": __version__,
                "isolation": services.verdict.isolation,
                "selfTest": msgspec.to_builtins(services.verdict),
                "deno": services.verdict.deno,
                "settings": [
                    {
                        "name": name,
                        "value": _shown(services.settings, name),
                        "default": msgspec.to_builtins(getattr(defaults, name)),
                        "source": services.setting_sources.get(name, "default"),
                    }
                    for name in Settings.__struct_fields__
                ],
            }
        )

    async def doctor(self, context: RequestContext) -> Response:
        """Checks the machine as `hutch doctor` does, which takes some seconds."""
        if self._examining.locked():
            message = "The machine is being checked already. Try again in a few seconds."
            raise ApiError("busy", message, headers={"Retry-After": "3"})
        async with self._examining:
            report = await asyncio.to_thread(examine_machine, self._services.settings)
        return Response(report.json(), media_type="application/json")


def _shown(settings: Settings, name: str) -> Any:
    value = getattr(settings, name)
    return "***" if name in SECRETS and value else msgspec.to_builtins(value)


async def _require_operator(context: RequestContext) -> None:
    if context.caller.identity is not None:
        raise ApiError("forbidden", "Only the operator may see this. Sign in with the operator's key.")


def _render(context: RequestContext, error: ApiError) -> Response:
    return _error(error)


def _error(error: ApiError) -> Response:
    status, code = ERROR_KINDS[error.kind]
    body = {"success": False, "error": {"code": code, "message": error.message}}
    return JSONResponse(body, status_code=status, headers=error.headers)


def _refused(refusal: Refusal) -> Response:
    return _error(refusal.error())
