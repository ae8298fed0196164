"""Routes for users, their API keys and their credentials. Only the operator may use them."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from hutch.http.endpoint import HttpProtocol, RequestContext
from hutch.http.errors import ApiError
from hutch.http.requests import JsonBodyReader
from hutch.kernel.fair_use import FairUse, today
from hutch.problems import describe_value
from hutch.store import models
from hutch.store.models import ApiKey, Credential, Quota, User
from hutch.store.store import Store
from hutch.text import cut, format_rfc3339
from hutch.vault import api_keys
from hutch.vault.vault import Vault

MAX_DAYS = 3_650


class AccountStorage(Protocol):
    def store(self) -> Awaitable[Store]: ...
    def vault(self) -> Awaitable[Vault]: ...


def routes(
    storage: AccountStorage, protocol: HttpProtocol, bodies: JsonBodyReader, fair_use: FairUse
) -> list[BaseRoute]:
    """`protocol` must allow access only to the operator."""
    handlers = AccountHandlers(storage, bodies, fair_use)
    return [
        protocol.route("/console/users", GET=handlers.users, POST=handlers.add_user),
        protocol.route("/console/users/{name}", GET=handlers.user, DELETE=handlers.remove_user),
        protocol.route("/console/users/{name}/quota", PUT=handlers.set_user_quota),
        protocol.route("/console/users/{name}/keys", POST=handlers.add_key),
        protocol.route("/console/users/{name}/credentials", POST=handlers.put_credential),
        protocol.route("/console/users/{name}/credentials/{id}", DELETE=handlers.remove_credential),
        protocol.route("/console/keys/{id}", DELETE=handlers.revoke_key),
        protocol.route("/console/keys/{id}/quota", PUT=handlers.set_key_quota),
    ]


class AccountHandlers:
    def __init__(self, storage: AccountStorage, bodies: JsonBodyReader, fair_use: FairUse) -> None:
        self._storage = storage
        self._bodies = bodies
        self._fair_use = fair_use

    async def users(self, context: RequestContext) -> Response:
        store = await self._storage.store()
        keys: dict[str, int] = {}
        for key in await store.api_keys.list():
            keys[key.user_id] = keys.get(key.user_id, 0) + (api_keys.state(key) == "active")
        users = await store.users.list()
        return JSONResponse(
            {
                "users": [{**_user_body(user), "keys": keys.get(user.id, 0)} for user in users],
                "scopes": list(api_keys.SCOPES),
                "defaultScopes": list(api_keys.DEFAULT_SCOPES),
            }
        )

    async def add_user(self, context: RequestContext) -> Response:
        body = await self._bodies.read_object(context.request)
        user = await (await self._storage.vault()).add_user(_text(body, "name"))
        return JSONResponse(_user_body(user), status_code=201)

    async def user(self, context: RequestContext) -> Response:
        user = await self._find(context)
        store = await self._storage.store()
        keys = await store.api_keys.list(user.id)
        subjects = [user.id, *(key.id for key in keys)]
        quotas, used = await store.quotas.get(subjects), await store.quotas.usage(subjects, today())

        def quota_body(subject: str) -> dict[str, Any]:
            quota = msgspec.to_builtins(quotas.get(subject, Quota()))
            executions, cpu_seconds = used[subject]
            return {"quota": quota, "today": {"executions": executions, "cpuSeconds": cpu_seconds}}

        return JSONResponse(
            {
                **_user_body(user),
                **quota_body(user.id),
                "defaults": msgspec.to_builtins(self._fair_use.defaults),
                "keys": [{**_key_body(key), **quota_body(key.id)} for key in keys],
                "credentials": [_credential_body(item) for item in await store.credentials.list(user.id)],
            }
        )

    async def set_user_quota(self, context: RequestContext) -> Response:
        """Replaces the quota of a user by the quota in the body. Limits that are missing or null come from
        the settings.
        """
        quota = _quota(await self._bodies.read_object(context.request))
        return await self._set_quota((await self._find(context)).id, quota)

    async def set_key_quota(self, context: RequestContext) -> Response:
        """Replaces the quota of a key by the quota in the body. Limits that are missing or null come from its
        user.
        """
        quota = _quota(await self._bodies.read_object(context.request))
        if quota.weight is not None:
            raise ApiError(
                "invalid_request", "`weight`: only users have a weight. Set it for the user of the key."
            )
        return await self._set_quota(await self._find_key(context), quota)

    async def _set_quota(self, subject: str, quota: Quota) -> Response:
        await (await self._storage.store()).quotas.set(subject, quota)
        self._fair_use.forget(subject)
        return JSONResponse(msgspec.to_builtins(quota))

    async def remove_user(self, context: RequestContext) -> Response:
        user = await self._find(context)
        await (await self._storage.store()).users.remove(user.id)
        return Response(status_code=204)

    async def add_key(self, context: RequestContext) -> Response:
        """Creates a key from `{"name", "scopes", "days"}`. The response has the only copy of its secret."""
        body = await self._bodies.read_object(context.request)
        scopes, days = body.get("scopes", []), body.get("days")
        if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
            raise ApiError("invalid_request", "`scopes`: expected a list of strings.")
        if days is not None and (type(days) is not int or not 0 < days <= MAX_DAYS):
            raise ApiError("invalid_request", f"`days`: expected 1 to {MAX_DAYS}, or nothing.")
        expires_at = None if days is None else format_rfc3339(datetime.now(UTC) + timedelta(days=days))
        user = await self._find(context)
        name = _text(body, "name") if "name" in body else ""
        key, secret = await (await self._storage.vault()).issue_key(
            user, name, scopes=scopes, expires_at=expires_at
        )
        return JSONResponse({**_key_body(key), "secret": secret}, status_code=201)

    async def revoke_key(self, context: RequestContext) -> Response:
        key_id = await self._find_key(context)
        await (await self._storage.store()).api_keys.revoke(key_id, models.now())
        return Response(status_code=204)

    async def put_credential(self, context: RequestContext) -> Response:
        """Stores `{"domain", "kind", "key", "value"}`. The value cannot be read again."""
        body = await self._bodies.read_object(context.request)
        user = await self._find(context)
        kind = _text(body, "kind") if "kind" in body else "header"
        credential = await (await self._storage.vault()).put_credential(
            user, _text(body, "domain"), kind, _text(body, "key"), _text(body, "value")
        )
        return JSONResponse(_credential_body(credential), status_code=201)

    async def remove_credential(self, context: RequestContext) -> Response:
        user = await self._find(context)
        store = await self._storage.store()
        for item in await store.credentials.list(user.id):
            if item.id == context.path_param("id"):
                await store.credentials.remove(user.id, item.domain, item.key, item.kind)
                break
        else:
            raise ApiError("not_found", "There is no such credential.")
        return Response(status_code=204)

    async def _find_key(self, context: RequestContext) -> str:
        key_id = context.path_param("id")
        store = await self._storage.store()
        if all(key.id != key_id for key in await store.api_keys.list()):
            raise ApiError("not_found", "There is no such key.")
        return key_id

    async def _find(self, context: RequestContext) -> User:
        user = await (await self._storage.store()).users.by_name(context.path_param("name"))
        if user is None:
            raise ApiError("not_found", "There is no such user.")
        return user


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ApiError("invalid_request", f"`{name}`: expected a string that is not empty.")
    return value


def _quota(body: dict[str, Any]) -> Quota:
    fields = Quota.__struct_fields__
    for name, value in body.items():
        if name not in fields:
            raise ApiError("invalid_request", f"`{cut(name, 100)}`: expected one of {', '.join(fields)}.")
        lowest, highest = (1, 100) if name == "weight" else (0, 2**53)
        if value is not None and (type(value) is not int or not lowest <= value <= highest):
            expected = f"a whole number from {lowest} to {highest}, or null"
            raise ApiError("invalid_request", f"`{name}`: expected {expected}, got {describe_value(value)}.")
    return msgspec.convert(body, Quota)


def _user_body(user: User) -> dict[str, Any]:
    return {"id": user.id, "name": user.name, "createdAt": user.created_at}


def _key_body(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "state": api_keys.state(key),
        "endsWith": key.hint,
        "scopes": list(key.scopes),
        "createdAt": key.created_at,
        "expiresAt": key.expires_at,
        "lastUsedAt": key.last_used_at,
    }


def _credential_body(credential: Credential) -> dict[str, Any]:
    return {
        "id": credential.id,
        "domain": credential.domain,
        "kind": credential.kind,
        "key": credential.key,
        "hint": credential.hint,
        "state": credential.state,
        "updatedAt": credential.updated_at,
    }
