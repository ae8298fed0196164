"""Abilities of a user as MCP tools, for clients that use the user's API key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from mcp.types import CallToolResult, Tool, ToolAnnotations

from hutch.http.rate_limit import KeyRateLimit
from hutch.protocols.abilities.definition import decode_definition, id_error
from hutch.protocols.abilities.routes import AbilityServices
from hutch.protocols.mcp.passthrough import (
    INVALID_NAME_CHARS,
    MAX_DESCRIPTION,
    MAX_TOOL_NAME,
    object_schema,
)
from hutch.protocols.mcp.results import MAX_CHARS, clip, json_text, text_result
from hutch.session.json_value import well_formed
from hutch.store.models import Ability
from hutch.vault.api_keys import Identity

PAGE_SIZE = 200
"""Number of tools per page of `tools/list`."""
_HASH_SUFFIX = re.compile(r"_[0-9a-f]{8}\Z")

INSTRUCTIONS = """\
Every tool here is an ability: a call of some API, made by the server with this user's credentials, which
are never shown. Results are the API's answers; long ones are truncated. An error that says that credentials
have expired means that the user has to store new ones, or to run one of the login abilities that it names."""


class AbilityTools:
    """MCP tools for the abilities of all users. Every call specifies the user."""

    def __init__(self, services: AbilityServices) -> None:
        self._services = services
        self._rate = KeyRateLimit.for_abilities(services.settings.ability_rate_limit)

    async def page(
        self, caller: Identity, after: str, taken: Collection[str]
    ) -> tuple[list[Tool], str | None]:
        """Returns the tools of the abilities after the id `after`. If there are more pages, also returns the
        last id of this page. `taken` are the names of other tools.
        """
        store = await self._services.store()
        abilities, has_more = await store.abilities.page(
            caller.user.id, shared=True, after=after, limit=PAGE_SIZE
        )
        tools = [_describe_ability(ability, tool_name(ability.ability_id, taken)) for ability in abilities]
        return tools, abilities[-1].ability_id if has_more else None

    async def find(self, caller: Identity, name: str, taken: Collection[str]) -> str | None:
        """Returns the id of the ability with this tool name, or None.

        Counts against the rate limit, because it may read all abilities. Raises RateLimited.
        """
        store = await self._services.store()
        await self._rate.check(caller.key, store.rate_limits)
        if name not in taken and id_error(name) is None:
            exact = await store.abilities.get(name, caller.user.id)
            if exact is not None and tool_name(name, taken) == name:
                return name
        if _HASH_SUFFIX.search(name):
            async for ability in self._all(caller):
                if tool_name(ability.ability_id, taken) == name:
                    return ability.ability_id
        return None

    async def call(self, caller: Identity, ability_id: str, params: Mapping[str, Any]) -> CallToolResult:
        """Executes an ability returned by `find`. Raises HutchError if the storage fails."""
        abilities = await self._services.abilities()
        response = await abilities.execute(caller.user, ability_id, dict(params), protocol="mcp")
        result = response.body.get("result")
        body = result.get("body") if isinstance(result, dict) else None
        if response.body.get("success") is True:
            return text_result(_body_text(body))
        parts = [str(response.body.get("error", "The ability failed"))]
        if body is not None:
            parts.append(_body_text(body))
        return text_result("\n\n".join(parts), failed=True)

    async def _all(self, caller: Identity) -> AsyncIterator[Ability]:
        store, after = await self._services.store(), ""
        while True:
            abilities, has_more = await store.abilities.page(
                caller.user.id, shared=True, after=after, limit=PAGE_SIZE
            )
            for ability in abilities:
                yield ability
            if not has_more:
                return
            after = abilities[-1].ability_id


def tool_name(ability_id: str, taken: Collection[str]) -> str:
    """Returns the tool name of an ability: the ability's id, or a name with a hash if the id is not a valid
    tool name or is taken.
    """
    name = INVALID_NAME_CHARS.sub("_", ability_id)
    if name == ability_id and len(name) <= MAX_TOOL_NAME and name not in taken:
        return name
    digest = hashlib.sha256(ability_id.encode()).hexdigest()[:8]
    return f"{name[: MAX_TOOL_NAME - 9]}_{digest}"


def _describe_ability(row: Ability, name: str) -> Tool:
    document = decode_definition(row.document)
    about = f"{document.ability_name} ({document.service_name})"
    text = f"{document.description}\n\n{about}" if document.description else about
    return Tool(
        name=name,
        title=well_formed(document.ability_name),
        description=well_formed(clip(text, MAX_DESCRIPTION)),
        input_schema=object_schema(document.input_schema) or {"type": "object"},
        annotations=ToolAnnotations(open_world_hint=True),
    )


def _body_text(body: Any) -> str:
    text = body if isinstance(body, str) else json_text(body)
    return clip(text, MAX_CHARS)
