"""Tables of users and their API keys."""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import AlreadyExists
from hutch.store.backends.base import Database, SqlStatement, Values
from hutch.store.models import ApiKey, User

if TYPE_CHECKING:
    from hutch.store.write_behind import WriteBehindQueue

USER_COLUMNS = "users.id, users.name, users.data_key, users.created_at"

API_KEY_COLUMNS = (
    "api_keys.id, api_keys.user_id, api_keys.name, api_keys.digest, api_keys.hint, api_keys.scopes, "
    "api_keys.created_at, api_keys.expires_at, api_keys.revoked_at, api_keys.last_used_at"
)
USAGE_INTERVAL_SECONDS = 60.0
"""Precision of `last_used_at`."""


def _user_from_row(row: Values) -> User:
    id, name, data_key, created_at = row
    return User(id=id, name=name, data_key=data_key, created_at=created_at)


# Tables of the queue from which the rows of a removed user are deleted. A run in progress is stopped too,
# because its server finds no row when it renews the lease.
_QUEUE_TABLES = (
    "schedules",
    "triggers",
    "saved_scripts",
    "webhook_secrets",
    "webhook_deliveries",
    "queued_runs",
)


class UserTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, user: User) -> None:
        """Inserts a user. Raises AlreadyExists if the name exists."""
        sql = """
            INSERT INTO users (id, name, data_key, created_at) VALUES (:id, :name, :data_key, :created_at)
        """
        try:
            await self._database.write(SqlStatement(sql, msgspec.structs.asdict(user)))
        except AlreadyExists:
            raise AlreadyExists(f"The user {user.name!r} already exists.") from None

    async def by_name(self, name: str) -> User | None:
        sql = f"SELECT {USER_COLUMNS} FROM users WHERE name = :name"
        rows = await self._database.read(sql, name=name)
        return _user_from_row(rows[0]) if rows else None

    async def by_id(self, id: str) -> User | None:
        sql = f"SELECT {USER_COLUMNS} FROM users WHERE id = :id"
        rows = await self._database.read(sql, id=id)
        return _user_from_row(rows[0]) if rows else None

    async def names(self, ids: Iterable[str]) -> dict[str, str]:
        """Returns the names of users by their ids."""
        wanted = sorted(set(ids))
        if not wanted:
            return {}
        sql = "SELECT id, name FROM users WHERE id IN :wanted"
        return dict(await self._database.read(sql, wanted=wanted))

    async def list(self) -> list[User]:
        sql = f"SELECT {USER_COLUMNS} FROM users ORDER BY name"
        return [_user_from_row(row) for row in await self._database.scan(sql)]

    async def any(self) -> bool:
        return bool(await self._database.read("SELECT 1 FROM users LIMIT 1"))

    async def remove(self, id: str) -> bool:
        """Deletes a user and everything that the user owns, except run records."""
        quotas = """
            DELETE FROM quotas
            WHERE subject = :id OR subject IN (SELECT id FROM api_keys WHERE user_id = :id)
        """
        _, changed, *_ = await self._database.write(
            SqlStatement(quotas, {"id": id}),
            SqlStatement("DELETE FROM users WHERE id = :id", {"id": id}),
            # Rows of the following tables have no foreign key to the user, because flows and runs may also
            # belong to the operator, who is not a user.
            SqlStatement("DELETE FROM flows WHERE owner = :id", {"id": id}),
            SqlStatement("DELETE FROM flow_runs WHERE owner = :id", {"id": id}),
            SqlStatement("DELETE FROM checkpoints WHERE owner = :id", {"id": id}),
            SqlStatement("DELETE FROM sessions WHERE owner = :id", {"id": id}),
            SqlStatement("DELETE FROM recorded_calls WHERE owner = :id", {"id": id}),
            SqlStatement("DELETE FROM stored_values WHERE owner = :id", {"id": id}),
            *(SqlStatement(f"DELETE FROM {table} WHERE owner = :id", {"id": id}) for table in _QUEUE_TABLES),
        )
        return changed.row_count == 1

    async def set_data_key(self, id: str, old: str, new: str) -> bool:
        """Replaces the data keys of a user if they are still `old`."""
        sql = "UPDATE users SET data_key = :new WHERE id = :id AND data_key = :old"
        (changed,) = await self._database.write(SqlStatement(sql, {"id": id, "old": old, "new": new}))
        return changed.row_count == 1


def _api_key_from_row(row: Values) -> ApiKey:
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


class ApiKeyTable:
    def __init__(self, database: Database, write_behind: WriteBehindQueue) -> None:
        self._database = database
        self._write_behind = write_behind
        self._recorded_at: dict[str, float] = {}

    async def add(self, key: ApiKey) -> None:
        """Inserts a key. Raises AlreadyExists if the id or digest exists."""
        sql = """
            INSERT INTO api_keys
                (id, user_id, name, digest, hint, scopes, created_at, expires_at, revoked_at)
            VALUES
                (:id, :user_id, :name, :digest, :hint, :scopes, :created_at, :expires_at, :revoked_at)
        """
        values = {name: getattr(key, name) for name in key.__struct_fields__}
        try:
            await self._database.write(SqlStatement(sql, {**values, "scopes": " ".join(key.scopes)}))
        except AlreadyExists:
            raise AlreadyExists("This API key already exists.") from None

    async def by_digest(self, digest: str) -> tuple[ApiKey, User] | None:
        """Returns the key with this digest and its user, even if the key is revoked or expired."""
        sql = f"""
            SELECT {API_KEY_COLUMNS}, {USER_COLUMNS}
            FROM api_keys JOIN users ON users.id = api_keys.user_id WHERE api_keys.digest = :digest
        """
        rows = await self._database.read(sql, digest=digest)
        return (_api_key_from_row(rows[0][:10]), _user_from_row(rows[0][10:])) if rows else None

    async def by_id(self, id: str) -> ApiKey | None:
        rows = await self._database.read(f"SELECT {API_KEY_COLUMNS} FROM api_keys WHERE id = :id", id=id)
        return _api_key_from_row(rows[0]) if rows else None

    async def list(self, user_id: str | None = None) -> builtins.list[ApiKey]:
        """Lists the keys of one user, or of all users, oldest first."""
        order = "ORDER BY user_id, created_at, id"
        if user_id is None:
            rows = await self._database.scan(f"SELECT {API_KEY_COLUMNS} FROM api_keys {order}")
        else:
            sql = f"SELECT {API_KEY_COLUMNS} FROM api_keys WHERE user_id = :user_id {order}"
            rows = await self._database.scan(sql, user_id=user_id)
        return [_api_key_from_row(row) for row in rows]

    async def revoke(self, id: str, at: str) -> bool:
        """Revokes a key. A key that is already revoked keeps its revocation time. Returns False if the key
        does not exist.
        """
        sql = "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, :at) WHERE id = :id"
        (changed,) = await self._database.write(SqlStatement(sql, {"id": id, "at": at}))
        return changed.row_count == 1

    async def remove(self, id: str) -> bool:
        changed, _ = await self._database.write(
            SqlStatement("DELETE FROM api_keys WHERE id = :id", {"id": id}),
            SqlStatement("DELETE FROM quotas WHERE subject = :id", {"id": id}),
        )
        return changed.row_count == 1

    def record_use(self, id: str, at: str) -> None:
        """Queues a record of the use of a key, at most once a minute."""
        moment = time.monotonic()
        if moment - self._recorded_at.get(id, -USAGE_INTERVAL_SECONDS) >= USAGE_INTERVAL_SECONDS:
            self._recorded_at[id] = moment
            self._write_behind.add_key_use(id, at)
