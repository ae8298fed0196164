"""The door's routes: how a request comes in, what is done for the user whose key it has, and the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from hutch.doors.abilities import answers, documents, openapi, requests
from hutch.doors.abilities.answers import Failed, success
from hutch.doors.abilities.needs import Rooms
from hutch.doors.gate import Gate
from hutch.doors.limits import Rate, retry_after
from hutch.doors.paths import Lane
from hutch.doors.presence import while_there
from hutch.doors.refusals import Refusal
from hutch.errors import (
    Busy,
    HutchError,
    InvalidAbility,
    InvalidInput,
    RateLimited,
    StoreError,
    Taken,
)
from hutch.store.rows import ApiKey, User

logger = logging.getLogger("hutch.abilities")

DOOR = "abilities"


class Visit:
    """A request on its way, and whose it is."""

    def __init__(self, request: Request, user: User) -> None:
        self.request = request
        self.user = user

    @property
    def ability_id(self) -> str:
        """Raises Failed for what no ability can be called."""
        found = str(self.request.path_params["id"])
        if documents.id_fault(found) is not None:
            raise answers.not_found(found[: documents.MOST_ID])
        return found

    @property
    def domain(self) -> str:
        return str(self.request.path_params["domain"])


Work = Callable[[Visit], Awaitable[Response]]


def routes(rooms: Rooms, gate: Gate) -> list[BaseRoute]:
    door = Door(rooms, gate)
    document = openapi.document(rooms.settings)

    async def described(request: Request) -> Response:
        return gate.refuse(request, public=True) or JSONResponse(document)

    def lane(path: str, **works: Work) -> BaseRoute:
        return Lane(path, Errand(door, works))

    return [
        Lane("/abilities/openapi.json", described),
        lane("/abilities/search", GET=door.search),
        lane("/abilities/{id}/execute", POST=door.execute),
        lane("/abilities/{id}", GET=door.show),
        lane("/my/abilities", GET=door.listed, POST=door.add),
        lane("/my/abilities/{id}/execute", POST=door.execute),
        lane("/my/abilities/{id}", GET=door.show_own, PUT=door.replace, DELETE=door.remove),
        lane("/my/credentials", GET=door.credentials, POST=door.keep_credential),
        lane("/my/credentials/{domain}", GET=door.credentials_of, DELETE=door.remove_credentials),
        lane("/my/runs", GET=door.runs),
    ]


class Errand:
    """A path and what is done there: an application of its own, to be there until its answer is sent."""

    def __init__(self, door: Door, works: Mapping[str, Work]) -> None:
        self._door = door
        self._works = works

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            with self._door.gate.visit():
                await (await self._answer(request))(scope, receive, send)
        except Busy as busy:
            await as_failed(busy).response()(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Whatever comes of a request, as something that can be sent."""
        try:
            work = self._works.get("GET" if request.method == "HEAD" else request.method)
            if work is None:
                raise _not_allowed(request, self._works)
            visitor = await self._door.gate.visitor(request, DOOR, users_only=True)
            if isinstance(visitor, Refusal):
                raise Failed(answers.REFUSED[visitor.status], visitor.message, headers=visitor.headers)
            assert visitor.caller is not None
            await self._door.count(visitor.caller.key)
            return await work(Visit(request, visitor.caller.user))
        except ClientDisconnect:
            return Response()  # nobody hears it
        except Exception as error:
            return as_failed(error).response()


class Door:
    """What is done at each path."""

    def __init__(self, rooms: Rooms, gate: Gate) -> None:
        self.gate = gate
        self._rooms = rooms
        self._settings = rooms.settings
        self._rate = Rate.of_abilities(rooms.settings.ability_rate_limit)

    async def count(self, key: ApiKey) -> None:
        """Raises RateLimited."""
        await self._rate.check(key, (await self._rooms.store()).limits)

    # --- executing ---

    async def execute(self, visit: Visit) -> Response:
        asked = requests.asked(await self._body(visit))
        abilities = await self._rooms.abilities()
        running = abilities.execute(visit.user, visit.ability_id, asked.params, asked.transform_code)
        answer = await while_there(visit.request.receive, running, self.gate)
        return answers.json_answer(answer.body, answer.status, answer.headers)

    # --- abilities ---

    async def search(self, visit: Visit) -> Response:
        text = requests.query(visit.request)
        limit = requests.number(visit.request, "top_k", 10, requests.MOST_FOUND)
        store = await self._rooms.store()
        found = await store.abilities.search(visit.user.id, text, limit)
        listed = [answers.ability(each, visit.user.id) for each in found]
        return success(count=len(listed), query=text, abilities=listed)

    async def show(self, visit: Visit) -> Response:
        """The user's own, or one that is shared."""
        store = await self._rooms.store()
        found = await store.abilities.get(visit.ability_id, visit.user.id)
        if found is None:
            raise answers.not_found(visit.ability_id)
        return success(ability=answers.ability(found, visit.user.id))

    async def show_own(self, visit: Visit) -> Response:
        store = await self._rooms.store()
        found = await store.abilities.get(visit.ability_id, visit.user.id)
        if found is None or found.owner_id != visit.user.id:
            raise answers.not_found(visit.ability_id)
        return success(ability=answers.ability(found, visit.user.id))

    async def listed(self, visit: Visit) -> Response:
        limit = requests.number(visit.request, "limit", requests.MOST_LISTED, requests.MOST_LISTED)
        after = requests.text(visit.request, "after")
        store = await self._rooms.store()
        found, cut = await store.abilities.page(visit.user.id, after=after, limit=limit)
        listed = [answers.ability(each, visit.user.id) for each in found]
        more = {"next": found[-1].ability_id} if cut else {}
        return success(count=len(listed), abilities=listed, **more)

    async def add(self, visit: Visit) -> Response:
        body = await self._body(visit)
        document = documents.read(body, most_code=self._settings.max_code_bytes)
        _check_private(body)
        store = await self._rooms.store()
        found = await store.abilities.get(document.ability_id, visit.user.id)
        if found is not None and found.owner_id == visit.user.id:
            raise Failed(
                "CONFLICT",
                f"ability_id: you have {document.ability_id!r} already;"
                f" PUT /my/abilities/{document.ability_id} replaces it",
            )
        return await self._keep(visit, document, shared=False, status=201)

    async def replace(self, visit: Visit) -> Response:
        """A new version of one's own, or a first one."""
        body = await self._body(visit)
        document = documents.read(body, ability_id=visit.ability_id, most_code=self._settings.max_code_bytes)
        _check_private(body)
        store = await self._rooms.store()
        found = await store.abilities.get(visit.ability_id, visit.user.id)
        own = found is not None and found.owner_id == visit.user.id
        shared = own and found is not None and found.shared
        return await self._keep(visit, document, shared=shared, status=200 if own else 201)

    async def _keep(
        self, visit: Visit, document: documents.Document, *, shared: bool, status: int
    ) -> Response:
        store = await self._rooms.store()
        await store.abilities.put(documents.as_row(document, visit.user.id, shared=shared))
        found = await store.abilities.get(document.ability_id, visit.user.id)
        if found is None:
            raise answers.not_found(document.ability_id)  # removed meanwhile
        return success(status, ability=answers.ability(found, visit.user.id))

    async def remove(self, visit: Visit) -> Response:
        store = await self._rooms.store()
        if not await store.abilities.remove(visit.ability_id, visit.user.id):
            raise answers.not_found(visit.ability_id)
        return success(ability_id=visit.ability_id)

    # --- credentials ---

    async def credentials(self, visit: Visit) -> Response:
        store = await self._rooms.store()
        found = await store.credentials.list(visit.user.id)
        listed = [answers.credential(each) for each in found]
        if not requests.flag(visit.request, "grouped"):
            return success(count=len(listed), credentials=listed)
        by_domain: dict[str, list[Any]] = {}
        for each in listed:
            by_domain.setdefault(each["domain"], []).append(each)
        return success(count=len(listed), grouped=True, credentials=by_domain)

    async def credentials_of(self, visit: Visit) -> Response:
        from hutch.vault.credentials import read_domain

        domain = read_domain(visit.domain)
        store = await self._rooms.store()
        found = await store.credentials.for_domains(visit.user.id, [domain])
        listed = [answers.credential(each) for each in found]
        return success(domain=domain, count=len(listed), credentials=listed)

    async def keep_credential(self, visit: Visit) -> Response:
        kept = requests.kept(await self._body(visit))
        value = kept.value
        if kept.encrypted:
            from hutch.vault.imports import open_public

            key = visit.request.headers.get(requests.KEY_HEADER, "")
            value = open_public(kept.value, key.encode("latin-1").decode("utf-8", "replace"))
        vault = await self._rooms.vault()
        found = await vault.put_credential(visit.user, kept.domain, kept.kind, kept.key, value)
        return success(201, credential=answers.credential(found))

    async def remove_credentials(self, visit: Visit) -> Response:
        from hutch.vault.credentials import read_domain

        domain = read_domain(visit.domain)
        key, kind = requests.text(visit.request, "key"), requests.text(visit.request, "type")
        store = await self._rooms.store()
        count = await store.credentials.remove(visit.user.id, domain, key or None, kind or None)
        return success(domain=domain, deletedCount=count)

    # --- runs ---

    async def runs(self, visit: Visit) -> Response:
        limit = requests.number(visit.request, "limit", 100, requests.MOST_LISTED)
        started, _, run_id = requests.text(visit.request, "before").partition("_")
        store = await self._rooms.store()
        found = await store.runs.list(visit.user.id, limit, (started, run_id) if run_id else None)
        more = {"next": f"{found[-1].started_at}_{found[-1].run_id}"} if len(found) == limit else {}
        return success(count=len(found), runs=[answers.run(each) for each in found], **more)

    async def _body(self, visit: Visit) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._settings.request_seconds):
                return await requests.read_object(visit.request, self._settings.max_body_bytes)
        except TimeoutError:
            message = f"body: did not come within {self._settings.request_seconds:g} s"
            raise Failed("INVALID_REQUEST", message) from None


def _check_private(body: Mapping[str, Any]) -> None:
    """What is shared runs for everybody: that is for whoever runs the server to decide."""
    if body.get("shared"):
        raise Failed(
            "FORBIDDEN", "shared: whoever runs this server shares abilities: `hutch ability add --shared`"
        )


def _not_allowed(request: Request, works: Mapping[str, Work]) -> Failed:
    allowed = ", ".join(sorted(works))
    message = f"{request.url.path} does not take {request.method}; it takes {allowed}"
    return Failed("METHOD_NOT_ALLOWED", message, headers={"Allow": allowed})


_FIELDS = {"kind": "credentialType", "key": "credentialKey"}


def as_failed(error: Exception) -> Failed:
    """What the caller is told of an exception; of those that nobody foresaw, only that there was one."""
    match error:
        case Failed():
            return error
        case RateLimited():
            return Failed("RATE_LIMITED", str(error), headers=retry_after(error.retry_after))
        case Busy():
            return Failed("BUSY", str(error), headers=retry_after(error.retry_after))
        case InvalidAbility():
            return requests.invalid(error.problems)
        case InvalidInput():
            field = _FIELDS.get(error.field, error.field)
            return requests.invalid([f"{field}{error.message.removeprefix(error.field)}"])
        case Taken():
            return Failed("CONFLICT", error.message)
        case StoreError():
            logger.error("the store failed: %s", error)
            return Failed(
                "UNAVAILABLE", "The store cannot be used; the server's log says why", headers=retry_after(1)
            )
        case HutchError():
            logger.error("a request failed: %s", error)
        case _:
            logger.error("a request failed", exc_info=error)
    return Failed("INTERNAL_ERROR", "The server failed; its log says why")
