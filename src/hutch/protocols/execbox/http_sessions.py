"""`/sessions`: stateful sessions over HTTP. Turns have the same bodies and responses as `POST /run`."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from hutch.http.endpoint import RequestContext
from hutch.http.errors import ApiError
from hutch.http.requests import JsonBodyReader
from hutch.kernel.sessions.sessions import Sessions, new_session_id
from hutch.protocols.execbox.http_run import PROTOCOL, RunHandler
from hutch.settings import Settings

PATH = "/sessions"
MAX_TURN = 2**53

T = TypeVar("T", bound=msgspec.Struct)


class SessionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str | None = None


class RollbackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    turn: int


def routes(runs: RunHandler, sessions: Sessions, settings: Settings) -> list[BaseRoute]:
    handlers = SessionHandlers(runs, sessions, settings)
    route = runs.protocol.route
    return [
        route(PATH, GET=handlers.list, POST=handlers.create),
        route(f"{PATH}/{{session}}", GET=handlers.show, DELETE=handlers.delete),
        route(f"{PATH}/{{session}}/run", POST=handlers.run),
        route(f"{PATH}/{{session}}/fork", POST=handlers.fork),
        route(f"{PATH}/{{session}}/rollback", POST=handlers.rollback),
        route(f"{PATH}/{{session}}/variables", GET=handlers.variables),
    ]


class SessionHandlers:
    def __init__(self, runs: RunHandler, sessions: Sessions, settings: Settings) -> None:
        self._runs = runs
        self._sessions = sessions
        self._body = JsonBodyReader(settings.max_body_bytes, settings.request_seconds)

    async def list(self, context: RequestContext) -> ASGIApp:
        return _json({"sessions": await self._sessions.list(context.owner)})

    async def create(self, context: RequestContext) -> ASGIApp:
        body = await self._read(context, SessionBody, optional=True)
        session = await self._sessions.create(body.id or new_session_id(), context.owner)
        return _json(session, 201)

    async def show(self, context: RequestContext) -> ASGIApp:
        return _json(await self._sessions.get(_session(context), context.owner))

    async def delete(self, context: RequestContext) -> ASGIApp:
        await self._sessions.delete(_session(context), context.owner)
        return Response(status_code=204)

    async def run(self, context: RequestContext) -> ASGIApp:
        session = _session(context)
        body = await self._runs.read_body(context)
        if body.engine not in (None, "quickjs"):
            raise ApiError("invalid_request", f"engine: expected quickjs for a session, got {body.engine}")
        if body.files is not None:
            raise ApiError("invalid_request", "files: expected none, because sessions have no files")
        if body.check:
            message = "check: expected false for a session, whose variables the compiler does not know"
            raise ApiError("invalid_request", message)
        # Check the session first, because an event stream cannot change its status later.
        await self._sessions.get(session, context.owner)
        return await self._runs.respond(context, body, partial(self._sessions.run, session, create=False))

    async def fork(self, context: RequestContext) -> ASGIApp:
        body = await self._read(context, SessionBody, optional=True)
        copy = body.id or new_session_id()
        await self._sessions.fork(_session(context), context.owner, copy)
        return _json(await self._sessions.get(copy, context.owner), 201)

    async def rollback(self, context: RequestContext) -> ASGIApp:
        body = await self._read(context, RollbackBody)
        if not 0 <= body.turn <= MAX_TURN:
            raise ApiError("invalid_request", f"turn: expected a turn of the session, or 0, got {body.turn}")
        session = _session(context)
        await self._sessions.rollback(session, context.owner, body.turn)
        return _json(await self._sessions.get(session, context.owner))

    async def variables(self, context: RequestContext) -> ASGIApp:
        found = await self._sessions.variables(_session(context), context.owner, PROTOCOL)
        return _json({"variables": found})

    async def _read(self, context: RequestContext, kind: type[T], *, optional: bool = False) -> T:
        body = await self._body.read_object(context.request, optional=optional)
        try:
            return msgspec.convert(body, kind)
        except msgspec.ValidationError as error:
            raise ApiError("invalid_request", f"body: {error}") from None


def _session(context: RequestContext) -> str:
    return context.path_param("session")


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
