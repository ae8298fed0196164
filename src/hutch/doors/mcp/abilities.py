"""A user's abilities as tools, for clients that come with that user's key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from mcp.types import CallToolResult, Tool, ToolAnnotations

from hutch.doors.abilities import documents
from hutch.doors.abilities.needs import Rooms
from hutch.doors.limits import Rate
from hutch.doors.mcp.answers import MOST_CHARS, answer, clip, json_text
from hutch.doors.mcp.passing import MOST_DESCRIPTION, MOST_NAME, UNFIT, object_schema
from hutch.session.jsonvalue import well_formed
from hutch.store.rows import Ability
from hutch.vault.apikeys import Caller

PAGE = 200
"""Tools that are listed at once; clients ask for more."""
_MARKED = re.compile(r"_[0-9a-f]{8}\Z")

INSTRUCTIONS = """\
Every tool here is an ability: a call of some API, made by the server with this user's credentials, which
nobody is shown. Results are the API's answers; long ones are truncated. An error that says that credentials
have expired means that the user has to store new ones, or to run one of the login abilities that it names."""


class UserTools:
    """All users' abilities; every call says whose are meant."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._rate = Rate.of_abilities(rooms.settings.ability_rate_limit)

    async def page(self, caller: Caller, after: str, taken: Collection[str]) -> tuple[list[Tool], str | None]:
        """The tools whose abilities come after an id, and where the next ones begin if there are more.

        `taken` are names that other tools have.
        """
        store = await self._rooms.store()
        found, cut = await store.abilities.page(caller.user.id, shared=True, after=after, limit=PAGE)
        tools = [_described(each, name_of(each.ability_id, taken)) for each in found]
        return tools, found[-1].ability_id if cut else None

    async def find(self, caller: Caller, name: str, taken: Collection[str]) -> str | None:
        """The id of the ability that has this name as a tool. That counts as a request: it may take a look at
        them all. Raises RateLimited."""
        store = await self._rooms.store()
        await self._rate.check(caller.key, store.limits)
        if name not in taken and documents.id_fault(name) is None:
            found = await store.abilities.get(name, caller.user.id)
            if found is not None and name_of(name, taken) == name:
                return name
        if _MARKED.search(name):
            async for each in self._all(caller):
                if name_of(each.ability_id, taken) == name:
                    return each.ability_id
        return None

    async def call(self, caller: Caller, ability_id: str, params: Mapping[str, Any]) -> CallToolResult:
        """What `find` found. Raises HutchError if what is kept cannot be had."""
        abilities = await self._rooms.abilities()
        given = await abilities.execute(caller.user, ability_id, dict(params), door="mcp")
        result = given.body.get("result")
        body = result.get("body") if isinstance(result, dict) else None
        if given.body.get("success") is True:
            return answer(_shown(body), given.body)
        parts = [str(given.body.get("error", "The ability failed"))]
        if body is not None:
            parts.append(_shown(body))
        return answer("\n\n".join(parts), given.body, failed=True)

    async def _all(self, caller: Caller) -> AsyncIterator[Ability]:
        store, after = await self._rooms.store(), ""
        while True:
            found, cut = await store.abilities.page(caller.user.id, shared=True, after=after, limit=PAGE)
            for each in found:
                yield each
            if not cut:
                return
            after = found[-1].ability_id


def name_of(ability_id: str, taken: Collection[str]) -> str:
    """What an ability is called as a tool: its id, if clients take that and no other tool has it."""
    name = UNFIT.sub("_", ability_id)
    if name == ability_id and len(name) <= MOST_NAME and name not in taken:
        return name
    mark = hashlib.sha256(ability_id.encode()).hexdigest()[:8]
    return f"{name[: MOST_NAME - 9]}_{mark}"


def _described(row: Ability, name: str) -> Tool:
    document = documents.decode(row.document)
    about = f"{document.ability_name} ({document.service_name})"
    text = f"{document.description}\n\n{about}" if document.description else about
    return Tool(
        name=name,
        title=well_formed(document.ability_name),
        description=well_formed(clip(text, MOST_DESCRIPTION)),
        input_schema=object_schema(document.input_schema) or {"type": "object"},
        annotations=ToolAnnotations(open_world_hint=True),
    )


def _shown(body: Any) -> str:
    text = body if isinstance(body, str) else json_text(body)
    return clip(text, MOST_CHARS)
