"""Routes of the Abilities protocol."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response
from starlette.routing import BaseRoute

from hutch.errors import InvalidAbility, InvalidInput
from hutch.http.auth import AccessControl
from hutch.http.endpoint import HttpProtocol, RequestContext
from hutch.http.errors import ApiError
from hutch.http.lifecycle import cancel_on_disconnect
from hutch.http.rate_limit import KeyRateLimit
from hutch.http.requests import JsonBodyReader, query_flag, query_integer, query_text
from hutch.protocols.abilities import requests, responses
from hutch.protocols.abilities.definition import (
    MAX_ID_CHARS,
    AbilityDefinition,
    definition_row,
    id_error,
    parse_definition,
)
from hutch.protocols.abilities.requests import CredentialBody
from hutch.protocols.abilities.responses import success
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.protocols.abilities.execute import AbilityExecutor
    from hutch.store.models import Ability, User
    from hutch.store.store import Store
    from hutch.vault.vault import Vault

logger = logging.getLogger("hutch.abilities")


class AbilityServices(Protocol):
    """Storage, vault and executor. Each is opened on first use. Opening it may raise StoreError or
    VaultError.
    """

    @property
    def settings(self) -> Settings: ...
    async def store(self) -> Store: ...
    async def vault(self) -> Vault: ...
    async def abilities(self) -> AbilityExecutor: ...


PROTOCOL = "abilities"


def routes(services: AbilityServices, access: AccessControl) -> list[BaseRoute]:
    handlers = AbilityHandlers(services, access)
    route, execute_route = handlers.protocol.route, handlers.execute_protocol.route
    return [
        route("/abilities/search", GET=handlers.search),
        route("/public/abilities", GET=handlers.search_shared),
        execute_route("/abilities/{id}/execute", POST=handlers.execute),
        route("/abilities/{id}", GET=handlers.show),
        route("/my/abilities", GET=handlers.list_own, POST=handlers.add),
        execute_route("/my/abilities/{id}/execute", POST=handlers.execute),
        route("/my/abilities/{id}/shares", GET=handlers.shares, POST=handlers.share, DELETE=handlers.unshare),
        route("/my/groups", GET=handlers.groups),
        route("/my/abilities/{id}", GET=handlers.show_own, PUT=handlers.replace, DELETE=handlers.remove),
        route("/my/credentials", GET=handlers.credentials, POST=handlers.store_credential),
        route("/my/credentials/stream", POST=handlers.store_credentials),
        route(
            "/my/credentials/{domain}", GET=handlers.domain_credentials, DELETE=handlers.remove_credentials
        ),
        route("/my/runs", GET=handlers.runs),
    ]


class AbilityHandlers:
    """Request handlers, one per route and method."""

    def __init__(self, services: AbilityServices, access: AccessControl) -> None:
        self._access = access
        self._services = services
        self._settings = services.settings
        self._rate = KeyRateLimit.for_abilities(services.settings.ability_rate_limit)
        self._body = JsonBodyReader(
            services.settings.max_body_bytes, services.settings.request_seconds, requests.MAX_VALUES
        )
        self.protocol = HttpProtocol(
            name=PROTOCOL,
            access=access,
            logger=logger,
            users_only=True,
            check=self._count,
            convert=_own_error,
            render=lambda context, error: responses.error_response(error),
        )
        # The specification fixes the error format of this route. The other routes use the common format.
        self.execute_protocol = replace(
            self.protocol, render=lambda context, error: responses.execution_error_response(error)
        )

    async def _count(self, context: RequestContext) -> None:
        await self._rate.check(context.identity.key, (await self._services.store()).rate_limits)

    # --- executing ---

    async def execute(self, context: RequestContext) -> Response:
        body = requests.parse_execute(await self._body.read_object(context.request))
        abilities = await self._services.abilities()
        execution = abilities.execute(
            context.identity.user,
            _ability_id(context),
            body.params,
            body.transform_code,
            credential_key=_credential_key(context),
        )
        response = await cancel_on_disconnect(context.request.receive, execution, self._access)
        return responses.json_response(response.body, response.status, response.headers)

    # --- abilities ---

    async def search(self, context: RequestContext) -> Response:
        text = requests.search_query(context.query)
        limit = query_integer(context.query, "top_k", 10, requests.MAX_SEARCH_RESULTS)
        domains = requests.search_domains(context.query)
        store = await self._services.store()
        abilities = await store.abilities.search(
            context.identity.user.id, text, requests.MAX_SEARCH_RESULTS if domains else limit
        )
        listed = await _list_json(abilities, context.identity.user, store)
        if domains:
            listed = [ability for ability in listed if responses.is_under(ability["domain"], domains)]
        return _search_response(text, listed[:limit])

    async def search_shared(self, context: RequestContext) -> Response:
        text = requests.search_query(context.query)
        limit = query_integer(context.query, "limit", 30, requests.MAX_SEARCH_RESULTS)
        store = await self._services.store()
        abilities = await store.abilities.search(context.identity.user.id, text, limit, only_shared=True)
        return _search_response(text, await _list_json(abilities, context.identity.user, store))

    async def show(self, context: RequestContext) -> Response:
        """Returns an ability that the user can run."""
        store = await self._services.store()
        ability = await store.abilities.get(_ability_id(context), context.identity.user.id)
        if ability is None:
            raise responses.not_found(_ability_id(context))
        (listed,) = await _list_json([ability], context.identity.user, store)
        return success(ability=listed)

    async def show_own(self, context: RequestContext) -> Response:
        ability = await self._own_ability(context)
        return success(ability=responses.ability_json(ability, context.identity.user.id))

    async def _own_ability(self, context: RequestContext) -> Ability:
        """Returns the ability in the path. Raises ApiError if it does not belong to the user."""
        store = await self._services.store()
        ability = await store.abilities.get(_ability_id(context), context.identity.user.id)
        if ability is None or ability.owner_id != context.identity.user.id:
            raise responses.not_found(_ability_id(context))
        return ability

    async def list_own(self, context: RequestContext) -> Response:
        limit = query_integer(context.query, "limit", requests.MAX_PAGE_SIZE, requests.MAX_PAGE_SIZE)
        after = query_text(context.query, "after")
        store = await self._services.store()
        abilities, has_more = await store.abilities.page(context.identity.user.id, after=after, limit=limit)
        listed = [responses.ability_json(row, context.identity.user.id) for row in abilities]
        more = {"next": abilities[-1].ability_id} if has_more else {}
        return success(count=len(listed), abilities=listed, **more)

    async def add(self, context: RequestContext) -> Response:
        body = await self._body.read_object(context.request)
        definition = parse_definition(body, max_code_bytes=self._settings.max_code_bytes)
        _check_not_shared(body)
        store = await self._services.store()
        existing = await store.abilities.get(definition.ability_id, context.identity.user.id)
        if existing is not None and existing.owner_id == context.identity.user.id:
            raise ApiError(
                "conflict",
                f"ability_id: you already have {definition.ability_id!r};"
                f" PUT /my/abilities/{definition.ability_id} replaces it",
            )
        return await self._store_definition(context, definition, shared=False, status=201)

    async def replace(self, context: RequestContext) -> Response:
        """Replaces the ability by a new version, or creates it."""
        body = await self._body.read_object(context.request)
        definition = parse_definition(
            body, ability_id=_ability_id(context), max_code_bytes=self._settings.max_code_bytes
        )
        _check_not_shared(body)
        store = await self._services.store()
        existing = await store.abilities.get(_ability_id(context), context.identity.user.id)
        is_own = existing is not None and existing.owner_id == context.identity.user.id
        shared = is_own and existing is not None and existing.shared
        return await self._store_definition(context, definition, shared=shared, status=200 if is_own else 201)

    async def _store_definition(
        self,
        context: RequestContext,
        definition: AbilityDefinition,
        *,
        shared: bool,
        status: int,
    ) -> Response:
        store = await self._services.store()
        await store.abilities.put(definition_row(definition, context.identity.user.id, shared=shared))
        ability = await store.abilities.get(definition.ability_id, context.identity.user.id)
        if ability is None:
            raise responses.not_found(definition.ability_id)  # the ability was removed meanwhile
        return success(status, ability=responses.ability_json(ability, context.identity.user.id))

    async def remove(self, context: RequestContext) -> Response:
        store = await self._services.store()
        if not await store.abilities.remove(_ability_id(context), context.identity.user.id):
            raise responses.not_found(_ability_id(context))
        return success(ability_id=_ability_id(context), abilityId=_ability_id(context))

    # --- sharing ---

    async def shares(self, context: RequestContext) -> Response:
        return await self._share_list(await self._own_ability(context))

    async def share(self, context: RequestContext) -> Response:
        """Shares the user's own ability with users, and with groups that the user belongs to."""
        body = requests.parse_share(await self._body.read_object(context.request))
        ability = await self._own_ability(context)
        store = await self._services.store()
        users = {name: await store.users.by_name(name) for name in body.users}
        own_groups = {group.name: group for group in await store.groups.of_user(context.identity.user.id)}
        problems = [f"users: there is no user {name!r}" for name, user in users.items() if user is None]
        problems += [
            f"groups: you are in no group {name!r}" for name in body.groups if name not in own_groups
        ]
        if context.identity.user.name in users:
            problems.append("users: expected other users, got yourself")
        if problems:
            raise requests.invalid_request(problems)
        await store.ability_shares.add(
            ability.ability_id,
            ability.owner_id,
            [user for user in users.values() if user is not None],
            [own_groups[name] for name in body.groups],
        )
        return await self._share_list(ability)

    async def unshare(self, context: RequestContext) -> Response:
        """Revokes the share with the user or the group in the query."""
        ability = await self._own_ability(context)
        store = await self._services.store()
        user_name, group_name = query_text(context.query, "user"), query_text(context.query, "group")
        if bool(user_name) == bool(group_name):
            raise requests.invalid_request(["user: expected either user or group in the query"])
        user = await store.users.by_name(user_name) if user_name else None
        group = await store.groups.by_name(group_name) if group_name else None
        users, groups = [user] if user else [], [group] if group else []
        removed = await store.ability_shares.remove(ability.ability_id, ability.owner_id, users, groups)
        if not removed:
            raise ApiError("not_found", f"The ability is not shared with {user_name or group_name!r}")
        return await self._share_list(ability)

    async def _share_list(self, ability: Ability) -> Response:
        store = await self._services.store()
        shares = await store.ability_shares.list(ability.ability_id, ability.owner_id)
        return success(count=len(shares), shares=[responses.share_json(share) for share in shares])

    async def groups(self, context: RequestContext) -> Response:
        store = await self._services.store()
        groups = await store.groups.of_user(context.identity.user.id)
        return success(count=len(groups), groups=[{"name": group.name} for group in groups])

    # --- credentials ---

    async def credentials(self, context: RequestContext) -> Response:
        store = await self._services.store()
        rows = await store.credentials.list(context.identity.user.id)
        listed = [responses.credential_json(row) for row in rows]
        if not query_flag(context.query, "grouped"):
            return success(count=len(listed), credentials=listed)
        by_domain: dict[str, list[Any]] = {}
        for credential in listed:
            by_domain.setdefault(credential["domain"], []).append(credential)
        return success(count=len(listed), grouped=True, credentials=by_domain)

    async def domain_credentials(self, context: RequestContext) -> Response:
        from hutch.vault.credentials import normalize_domain

        domain = normalize_domain(context.path_param("domain"))
        store = await self._services.store()
        rows = await store.credentials.for_domains(context.identity.user.id, [domain])
        listed = [responses.credential_json(row) for row in rows]
        return success(domain=domain, count=len(listed), credentials=listed)

    async def store_credential(self, context: RequestContext) -> Response:
        body = requests.parse_credential(await self._body.read_object(context.request))
        credential = await self._store_credential(context, body, is_locked=False)
        return success(201, credential=credential)

    async def store_credentials(self, context: RequestContext) -> Response:
        """Stores credentials of one domain. Encrypted credentials are decrypted with the key in the request,
        or stored encrypted if the request has no key.
        """
        bodies = requests.parse_credential_stream(await self._body.read_object(context.request))
        has_key = bool(_credential_key(context))
        stored = [
            await self._store_credential(context, body, is_locked=body.encrypted and not has_key)
            for body in bodies
        ]
        return success(201, count=len(stored), credentials=stored)

    async def _store_credential(
        self, context: RequestContext, body: CredentialBody, *, is_locked: bool
    ) -> dict[str, Any]:
        value = body.value
        if body.encrypted and not is_locked:
            from hutch.vault.client_import import decrypt_value

            value = decrypt_value(body.value, _credential_key(context))
        vault = await self._services.vault()
        credential = await vault.put_credential(
            context.identity.user, body.domain, body.kind, body.key, value, is_locked=is_locked
        )
        return responses.credential_json(credential)

    async def remove_credentials(self, context: RequestContext) -> Response:
        from hutch.vault.credentials import normalize_domain

        domain = normalize_domain(context.path_param("domain"))
        key, kind = (
            query_text(context.query, "key"),
            query_text(context.query, "type"),
        )
        store = await self._services.store()
        count = await store.credentials.remove(context.identity.user.id, domain, key or None, kind or None)
        return success(domain=domain, deletedCount=count)

    # --- runs ---

    async def runs(self, context: RequestContext) -> Response:
        limit = query_integer(context.query, "limit", 100, requests.MAX_PAGE_SIZE)
        started, _, run_id = query_text(context.query, "before").partition("_")
        store = await self._services.store()
        rows = await store.runs.list(context.identity.user.id, limit, (started, run_id) if run_id else None)
        more = {"next": f"{rows[-1].created_at}_{rows[-1].run_id}"} if len(rows) == limit else {}
        return success(count=len(rows), runs=[responses.run_json(row) for row in rows], **more)


async def _list_json(rows: Sequence[Ability], user: User, store: Store) -> list[dict[str, Any]]:
    owners = await responses.shared_by(rows, user.id, store)
    return [responses.ability_json(row, user.id, owners.get(row.owner_id)) for row in rows]


def _search_response(text: str, abilities: list[dict[str, Any]]) -> Response:
    # Send the list twice, because the public client reads `results` from one search route and `abilities`
    # from the other.
    return success(count=len(abilities), query=text, abilities=abilities, results=abilities)


def _credential_key(context: RequestContext) -> str:
    """Returns the key with which the client has encrypted its credentials, or an empty text if the header is
    missing.
    """
    key = context.request.headers.get(requests.CREDENTIAL_KEY_HEADER, "")
    return key.encode("latin-1").decode("utf-8", "replace")


def _ability_id(context: RequestContext) -> str:
    """Returns the id from the path. Raises ApiError if it is invalid."""
    ability_id = context.path_param("id")
    if id_error(ability_id) is not None:
        raise responses.not_found(ability_id[:MAX_ID_CHARS])
    return ability_id


def _check_not_shared(body: Mapping[str, Any]) -> None:
    """Raises ApiError if the body shares the ability with all users. Only the operator may do that, because
    such an ability runs for every user.
    """
    if body.get("shared"):
        raise ApiError(
            "forbidden",
            "shared: only the operator shares abilities with everyone, with `hutch ability add --shared`;"
            " POST /my/abilities/{id}/shares shares an ability with users and groups",
        )


_FIELDS = {"kind": "credentialType", "key": "credentialKey"}


def _own_error(error: Exception) -> ApiError | None:
    match error:
        case InvalidAbility():
            return requests.invalid_request(error.problems)
        case InvalidInput():
            field = _FIELDS.get(error.field, error.field)
            return requests.invalid_request([f"{field}{error.message.removeprefix(error.field)}"])
    return None
