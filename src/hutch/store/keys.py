"""API keys, by the digest of their secret."""

from __future__ import annotations

import builtins
import time
from typing import TYPE_CHECKING

from hutch.errors import Taken
from hutch.store import users
from hutch.store.database import Database, Statement, Values
from hutch.store.rows import ApiKey, User

if TYPE_CHECKING:
    from hutch.store.later import Later

COLUMNS = (
    "api_keys.id, api_keys.user_id, api_keys.name, api_keys.digest, api_keys.hint, api_keys.scopes, "
    "api_keys.created_at, api_keys.expires_at, api_keys.revoked_at, api_keys.last_used_at"
)
USE_SECONDS = 60.0
"""How exactly it is known when a key was last used."""


def api_key(row: Values) -> ApiKey:
    id, user_id, name, digest, hint, scopes, created_at, expires_at, revoked_at, last_used_at = row
    return ApiKey(
        id=id,
        user_id=user_id,
        name=name,
        digest=digest,
        hint=hint,
        scopes=tuple(scopes.split()),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=last_used_at,
    )


class Keys:
    def __init__(self, database: Database, later: Later) -> None:
        self._database = database
        self._later = later
        self._used: dict[str, float] = {}

    async def add(self, key: ApiKey) -> None:
        """Raises Taken if there is one with that id or digest."""
        sql = """
            INSERT INTO api_keys
                (id, user_id, name, digest, hint, scopes, created_at, expires_at, revoked_at)
            VALUES
                (:id, :user_id, :name, :digest, :hint, :scopes, :created_at, :expires_at, :revoked_at)
        """
        values = {name: getattr(key, name) for name in key.__struct_fields__}
        try:
            await self._database.write(Statement(sql, {**values, "scopes": " ".join(key.scopes)}))
        except Taken:
            raise Taken("There is such a key already.") from None

    async def by_digest(self, digest: str) -> tuple[ApiKey, User] | None:
        """A key with whose it is, also one that is revoked or expired."""
        sql = f"""
            SELECT {COLUMNS}, {users.COLUMNS} FROM api_keys JOIN users ON users.id = api_keys.user_id
            WHERE api_keys.digest = :digest
        """
        found = await self._database.read(sql, digest=digest)
        return (api_key(found[0][:10]), users.user(found[0][10:])) if found else None

    async def list(self, user_id: str | None = None) -> builtins.list[ApiKey]:
        """A user's, or everybody's; oldest first."""
        order = "ORDER BY user_id, created_at, id"
        if user_id is None:
            found = await self._database.scan(f"SELECT {COLUMNS} FROM api_keys {order}")
        else:
            sql = f"SELECT {COLUMNS} FROM api_keys WHERE user_id = :user_id {order}"
            found = await self._database.scan(sql, user_id=user_id)
        return [api_key(row) for row in found]

    async def revoke(self, id: str, at: str) -> bool:
        """False if there is none; one that is revoked already stays so since then."""
        sql = "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, :at) WHERE id = :id"
        (changed,) = await self._database.write(Statement(sql, {"id": id, "at": at}))
        return changed.touched == 1

    async def remove(self, id: str) -> bool:
        (changed,) = await self._database.write(Statement("DELETE FROM api_keys WHERE id = :id", {"id": id}))
        return changed.touched == 1

    def used(self, id: str, at: str) -> None:
        """Costs nothing: written a moment later, and once a minute at most."""
        moment = time.monotonic()
        if moment - self._used.get(id, -USE_SECONDS) >= USE_SECONDS:
            self._used[id] = moment
            self._later.key_used(id, at)
