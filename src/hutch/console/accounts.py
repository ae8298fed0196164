"""Routes for users, their API keys and their credentials. Only the operator may use them."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from hutch.http.endpoint import HttpProtocol, RequestContext
from hutch.http.errors import ApiError
from hutch.http.requests import JsonBodyReader
from hutch.store import models
from hutch.store.models import ApiKey, Credential, User
from hutch.store.store import Store
from hutch.text import format_rfc3339
from hutch.vault import api_keys
from hutch.vault.vault import Vault

MAX_DAYS = 3_650


class AccountStorage(Protocol):
    def store(self) -> Awaitable[Store]: ...
    def vault(self) -> Awaitable[Vault]: ...


def routes(storage: AccountStorage, protocol: HttpProtocol, bodies: JsonBodyReader) -> list[BaseRoute]:
    """`protocol` must give access to the operator alone."""
    handlers = AccountHandlers(storage, bodies)
    return [
        protocol.route("/console/users", GET=handlers.users, POST=handlers.add_user),
        protocol.route("/console/users/{name}", GET=handlers.user, DELETE=handlers.remove_user),
        protocol.route("/console/users/{name}/keys", POST=handlers.add_key),
        protocol.route("/console/users/{name}/credentials", POST=handlers.put_credential),
        protocol.route("/console/users/{name}/credentials/{id}", DELETE=handlers.remove_credential),
        protocol.route("/console/keys/{id}", DELETE=handlers.revoke_key),
    ]


class AccountHandlers:
    def __init__(self, storage: AccountStorage, bodies: JsonBodyReader) -> None:
        self._storage = storage
        self._bodies = bodies

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
        return JSONResponse(
            {
                **_user_body(user),
                "keys": [_key_body(key) for key in await store.api_keys.list(user.id)],
                "credentials": [_credential_body(item) for item in await store.credentials.list(user.id)],
            }
        )

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
        store = await self._storage.store()
        key_id = context.path_param("id")
        if all(key.id != key_id for key in await store.api_keys.list()):
            raise ApiError("not_found", "There is no such key.")
        await store.api_keys.revoke(key_id, models.now())
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
