"""Users: whose everything else is."""

from __future__ import annotations

import msgspec

from hutch.errors import Taken
from hutch.store.database import Database, Statement, Values
from hutch.store.rows import User

COLUMNS = "users.id, users.name, users.data_key, users.created_at"


def user(row: Values) -> User:
    id, name, data_key, created_at = row
    return User(id=id, name=name, data_key=data_key, created_at=created_at)


class Users:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, user: User) -> None:
        """Raises Taken if there is a user of that name."""
        sql = """
            INSERT INTO users (id, name, data_key, created_at) VALUES (:id, :name, :data_key, :created_at)
        """
        try:
            await self._database.write(Statement(sql, msgspec.structs.asdict(user)))
        except Taken:
            raise Taken(f"There is a user {user.name!r} already.") from None

    async def by_name(self, name: str) -> User | None:
        sql = f"SELECT {COLUMNS} FROM users WHERE name = :name"
        found = await self._database.read(sql, name=name)
        return user(found[0]) if found else None

    async def by_id(self, id: str) -> User | None:
        sql = f"SELECT {COLUMNS} FROM users WHERE id = :id"
        found = await self._database.read(sql, id=id)
        return user(found[0]) if found else None

    async def list(self) -> list[User]:
        return [user(row) for row in await self._database.scan(f"SELECT {COLUMNS} FROM users ORDER BY name")]

    async def any(self) -> bool:
        """Whether there are any at all."""
        return bool(await self._database.read("SELECT 1 FROM users LIMIT 1"))

    async def remove(self, id: str) -> bool:
        """With all that is theirs, but not what is recorded of their runs."""
        changed = await self._database.write(
            Statement("DELETE FROM users WHERE id = :id", {"id": id}),
            # These may also be the operator's, who is no user.
            Statement("DELETE FROM flows WHERE owner = :id", {"id": id}),
            Statement("DELETE FROM flow_runs WHERE owner = :id", {"id": id}),
        )
        return changed[0].touched == 1

    async def set_data_key(self, id: str, old: str, new: str) -> bool:
        """Replaces a data key if it is still `old`."""
        sql = "UPDATE users SET data_key = :new WHERE id = :id AND data_key = :old"
        (changed,) = await self._database.write(Statement(sql, {"id": id, "old": old, "new": new}))
        return changed.touched == 1
