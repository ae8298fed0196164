"""Routes of the queue: dead letters, webhooks, saved scripts, schedules, triggers and their URLs."""

from __future__ import annotations

import logging
from collections.abc import Sized

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from hutch.errors import InvalidInput, Unauthorized
from hutch.http.auth import AccessControl
from hutch.http.endpoint import HttpProtocol, RequestContext
from hutch.http.errors import ApiError, to_api_error
from hutch.http.rate_limit import CallRateLimit
from hutch.http.requests import JsonBodyReader, query_text
from hutch.http.routing import PrefixRoute
from hutch.http.server.connections import parse_address
from hutch.protocols.queue import responses
from hutch.protocols.queue.requests import PauseBody, ScheduleBody, ScriptBody, TriggerBody, convert
from hutch.protocols.queue.responses import error_response, json_response
from hutch.queue.models import KeyInUse
from hutch.queue.queue import RunQueue
from hutch.queue.requests import queue_caller
from hutch.queue.starters import (
    NotFound,
    Starters,
    TriggerOptions,
    find_schedule,
    find_trigger,
)
from hutch.queue.targets import Forbidden, StartOptions, check_change, check_engine, check_name
from hutch.queue.webhooks.messages import owner_secret
from hutch.queue.webhooks.signature import new_secret
from hutch.settings import Settings
from hutch.store.store import Store
from hutch.store.tables.queue.queued_runs import QueuedRunRow, QueueState
from hutch.store.tables.queue.schedules import SavedScript, Schedule, Trigger

logger = logging.getLogger("hutch.queue.api")

HOOKS_PER_MINUTE = 600
"""Maximum number of requests to the URLs of triggers from one address, or one IPv6 network of 64 bits."""
MAX_TOKEN_CHARS = 200
OPERATOR_OWNERS = ("local", "key")
MAX_PER_OWNER = 1_000
"""Maximum number of saved scripts, of schedules and of triggers of one owner. Lists have the same maximum."""
_OPEN: tuple[QueueState, ...] = ("delayed", "queued", "running", "dead")


def routes(queue: RunQueue, access: AccessControl, settings: Settings) -> list[BaseRoute]:
    handlers = QueueHandlers(queue, access, settings)
    route = handlers.protocol.route
    return [
        route("/queue", GET=handlers.list),
        route("/queue/{id}", DELETE=handlers.discard),
        route("/queue/{id}/retry", POST=handlers.retry),
        route("/webhooks", GET=handlers.deliveries),
        route("/webhooks/secret", GET=handlers.secret, POST=handlers.rotate_secret),
        route("/webhooks/{id}/send", POST=handlers.send_again),
        route("/scripts", GET=handlers.scripts),
        route(
            "/scripts/{name}", GET=handlers.script, PUT=handlers.save_script, DELETE=handlers.remove_script
        ),
        route("/schedules", GET=handlers.schedules, POST=handlers.add_schedule),
        route("/schedules/{name}", PATCH=handlers.pause_schedule, DELETE=handlers.remove_schedule),
        route("/triggers", GET=handlers.triggers, POST=handlers.add_trigger),
        route("/triggers/{name}", PATCH=handlers.pause_trigger, DELETE=handlers.remove_trigger),
        PrefixRoute("/hooks/{token}", handlers.fire, methods=["POST"]),
    ]


class QueueHandlers:
    """Request handlers, one per route and method. The operator sees the runs and messages of all owners."""

    def __init__(self, queue: RunQueue, access: AccessControl, settings: Settings) -> None:
        self._queue = queue
        self._access = access
        self._starters = Starters(queue)
        self._settings = settings
        self._body = JsonBodyReader(settings.max_body_bytes, settings.request_seconds)
        self._rate = CallRateLimit(
            HOOKS_PER_MINUTE, noun="requests to triggers", limit_name="hooks_per_minute"
        )
        self.protocol = HttpProtocol(
            name=None,
            access=access,
            logger=logger,
            convert=_own_error,
            render=lambda context, error: error_response(error),
        )

    async def _store(self) -> Store:
        return await self._queue.store()

    # --- runs ---

    async def list(self, context: RequestContext) -> Response:
        store = await self._store()
        rows = await store.queued_runs.list(_OPEN, _visible_owner(context), limit=200)
        counts = await store.queued_runs.counts(_visible_owner(context))
        visible = [responses.queued_run(row) for row in rows if context.caller.may(row.protocol)]
        return json_response({"counts": counts, "runs": visible})

    async def retry(self, context: RequestContext) -> Response:
        row = await self._visible_run(context)
        if not await self._queue.retry(row.run_id):
            raise ApiError("conflict", f"Run {row.run_id!r} is not a dead letter")
        return json_response({"ok": True, "run_id": row.run_id}, 202)

    async def discard(self, context: RequestContext) -> Response:
        row = await self._visible_run(context)
        if not await (await self._store()).queued_runs.discard(row.run_id):
            raise ApiError("conflict", f"Run {row.run_id!r} is not a dead letter")
        return json_response({"ok": True, "run_id": row.run_id})

    async def _visible_run(self, context: RequestContext) -> QueuedRunRow:
        run_id, owner = context.path_param("id"), _visible_owner(context)
        row = await self._queue.find(run_id)
        if row is None or (owner is not None and row.owner != owner) or not context.caller.may(row.protocol):
            raise ApiError("not_found", f"There is no run {run_id[:200]!r}")
        return row

    # --- webhooks ---

    async def deliveries(self, context: RequestContext) -> Response:
        run_id = query_text(context.query, "run_id") or None
        rows = await (await self._store()).webhooks.list(
            owner=_visible_owner(context), run_id=run_id, limit=200
        )
        return json_response({"deliveries": [responses.delivery(row) for row in rows]})

    async def send_again(self, context: RequestContext) -> Response:
        id, owner = context.path_param("id"), _visible_owner(context)
        row = await (await self._store()).webhooks.get(id)
        if row is None or (owner is not None and row.owner != owner):
            raise ApiError("not_found", f"There is no delivery {id[:200]!r}")
        await self._queue.send_again(id)
        return json_response({"ok": True, "id": id}, 202)

    async def secret(self, context: RequestContext) -> Response:
        return json_response({"secret": await owner_secret(await self._store(), context.owner)})

    async def rotate_secret(self, context: RequestContext) -> Response:
        await (await self._store()).webhooks.put_secret(context.owner, new_secret(), replaces=True)
        return await self.secret(context)

    # --- saved scripts ---

    async def scripts(self, context: RequestContext) -> Response:
        rows = await (await self._store()).saved_scripts.list(context.owner)
        return json_response({"scripts": [responses.script(row) for row in rows]})

    async def script(self, context: RequestContext) -> Response:
        name = context.path_param("name")
        row = await (await self._store()).saved_scripts.get(context.owner, name)
        if row is None:
            raise NotFound(f"There is no saved script {name[:200]!r}.")
        return json_response(responses.script(row, with_code=True))

    async def save_script(self, context: RequestContext) -> Response:
        body = convert(await self._body.read_object(context.request), ScriptBody)
        name = check_name(context.path_param("name"))
        store = await self._store()
        size, maximum = len(body.code.encode("utf-8", "surrogatepass")), self._settings.max_code_bytes
        if size > maximum:
            limit = f"expected at most {maximum} bytes (setting max_code_bytes), got {size}"
            raise ApiError("invalid_request", f"code: {limit}")
        caller = queue_caller(context.caller)
        check_engine(caller, body.engine)
        scripts = {script.name: script for script in await store.saved_scripts.list(context.owner)}
        if (replaced := scripts.get(name)) is None:
            _check_room("saved scripts", scripts)
        else:
            check_engine(caller, replaced.engine)
        await store.saved_scripts.put(
            SavedScript(owner=context.owner, name=name, engine=body.engine, code=body.code)
        )
        return await self.script(context)

    async def remove_script(self, context: RequestContext) -> Response:
        name, store = context.path_param("name"), await self._store()
        script = await store.saved_scripts.get(context.owner, name)
        if script is None:
            raise NotFound(f"There is no saved script {name[:200]!r}.")
        check_engine(queue_caller(context.caller), script.engine)
        await store.saved_scripts.remove(context.owner, name)
        return json_response({"ok": True, "name": name})

    # --- schedules ---

    async def schedules(self, context: RequestContext) -> Response:
        rows = await (await self._store()).schedules.list(_visible_owner(context))
        return json_response({"schedules": [responses.schedule(row) for row in rows]})

    async def add_schedule(self, context: RequestContext) -> Response:
        body = convert(await self._body.read_object(context.request), ScheduleBody)
        _check_room("schedules", await (await self._store()).schedules.list(context.owner))
        options = StartOptions(
            inputs=body.inputs, attempts=body.attempts, webhook=body.target_webhook(self._queue.targets)
        )
        row = await self._starters.add_schedule(
            queue_caller(context.caller),
            body.name,
            *body.target,
            body.cron,
            timezone=body.timezone,
            missed=body.missed,
            options=options,
        )
        return json_response(responses.schedule(row), 201)

    async def pause_schedule(self, context: RequestContext) -> Response:
        body = convert(await self._body.read_object(context.request), PauseBody)
        await self._starters.pause_schedule(await self._schedule(context), is_paused=body.paused)
        return json_response(responses.schedule(await self._schedule(context)))

    async def remove_schedule(self, context: RequestContext) -> Response:
        row = await self._schedule(context)
        await (await self._store()).schedules.remove(row.id)
        return json_response({"ok": True, "name": row.name})

    async def _schedule(self, context: RequestContext) -> Schedule:
        """Returns the schedule that the path names, if the caller may change it. The operator can name the
        schedules of other owners by id.
        """
        store, name = await self._store(), context.path_param("name")
        row = await store.schedules.by_id(name) if _visible_owner(context) is None else None
        row = row or await find_schedule(store, _owners(context), name)
        await check_change(store, queue_caller(context.caller), row)
        return row

    # --- triggers ---

    async def triggers(self, context: RequestContext) -> Response:
        rows = await (await self._store()).triggers.list(_visible_owner(context))
        return json_response({"triggers": [responses.trigger(row) for row in rows]})

    async def add_trigger(self, context: RequestContext) -> Response:
        body = convert(await self._body.read_object(context.request), TriggerBody)
        _check_room("triggers", await (await self._store()).triggers.list(context.owner))
        options = TriggerOptions(
            inputs=body.inputs,
            attempts=body.attempts,
            webhook=body.target_webhook(self._queue.targets),
            mapping=body.map,
            secret=body.secret,
        )
        added = await self._starters.add_trigger(
            queue_caller(context.caller), body.name, *body.target, signature=body.signature, options=options
        )
        # Include the URL and the secret, which no later response contains.
        shown = {"url": f"/hooks/{added.token}", "secret": added.secret}
        return json_response({**responses.trigger(added.trigger), **shown}, 201)

    async def pause_trigger(self, context: RequestContext) -> Response:
        body = convert(await self._body.read_object(context.request), PauseBody)
        row = await self._trigger(context)
        await (await self._store()).triggers.pause(row.id, is_paused=body.paused)
        return json_response(responses.trigger(await self._trigger(context)))

    async def remove_trigger(self, context: RequestContext) -> Response:
        row = await self._trigger(context)
        await (await self._store()).triggers.remove(row.id)
        return json_response({"ok": True, "name": row.name})

    async def _trigger(self, context: RequestContext) -> Trigger:
        """Returns the trigger that the path names, if the caller may change it. The operator can name the
        triggers of other owners by id.
        """
        store, name = await self._store(), context.path_param("name")
        row = await store.triggers.by_id(name) if _visible_owner(context) is None else None
        row = row or await find_trigger(store, _owners(context), name)
        await check_change(store, queue_caller(context.caller), row)
        return row

    async def fire(self, request: Request) -> Response:
        """Starts the run of a trigger. The token in the path and the signature replace the API key."""
        try:
            if (refusal := self._access.check(request, public=True)) is not None:
                raise refusal.error()
            with self._access.track_request():
                self._rate.check("" if request.client is None else parse_address(request.client.host).group)
                token = str(request.path_params["token"])[:MAX_TOKEN_CHARS]
                # Check the token first, so that the body of a request without a valid token is not read.
                row = await self._starters.find_trigger(token)
                body = await self._body.read_bytes(request)
                now = await (await self._store()).queued_runs.now() / 1000
                accepted = await self._starters.fire(row, request.headers, request.query_params, body, now)
            return json_response({"ok": True, "runId": accepted.run_id}, 202)
        except Exception as error:
            return error_response(_own_error(error) or to_api_error(error, logger))


def _check_room(noun: str, existing: Sized) -> None:
    """Raises ApiError if the owner already has the maximum number of scripts, schedules or triggers."""
    if len(existing) >= MAX_PER_OWNER:
        raise ApiError("conflict", f"An owner may have {MAX_PER_OWNER} {noun}. Remove some first.")


def _visible_owner(context: RequestContext) -> str | None:
    """Returns None for the operator, who sees the data of all owners."""
    return None if context.caller.identity is None else context.owner


def _owners(context: RequestContext) -> tuple[str, ...]:
    """Returns the owners whose schedules and triggers the caller may change. The operator has two owner
    names: one for objects added before the server had a key, and one for objects added later.
    """
    others = OPERATOR_OWNERS if context.caller.identity is None else ()
    return context.owner, *(owner for owner in others if owner != context.owner)


def _own_error(error: Exception) -> ApiError | None:
    match error:
        case NotFound():
            return ApiError("not_found", str(error))
        case Forbidden():
            return ApiError("forbidden", str(error))
        case Unauthorized():
            return ApiError("unauthorized", str(error))
        case KeyInUse():
            return ApiError("conflict", str(error))
        case InvalidInput():
            return ApiError("invalid_request", str(error))
    return None
