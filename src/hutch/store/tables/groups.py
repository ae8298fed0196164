"""Tables of groups and their members."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import msgspec

from hutch.errors import AlreadyExists
from hutch.store.backends.base import Database, SqlStatement
from hutch.store.models import Group, new_id, now


class GroupTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, name: str) -> Group:
        """Inserts a group. Raises AlreadyExists if the name exists."""
        group = Group(id=f"group_{new_id()[:16]}", name=name, created_at=now())
        sql = "INSERT INTO user_groups (id, name, created_at) VALUES (:id, :name, :created_at)"
        try:
            await self._database.write(SqlStatement(sql, msgspec.structs.asdict(group)))
        except AlreadyExists:
            raise AlreadyExists(f"The group {name!r} already exists.") from None
        return group

    async def by_name(self, name: str) -> Group | None:
        sql = "SELECT id, name, created_at FROM user_groups WHERE name = :name"
        rows = await self._database.read(sql, name=name)
        return Group(id=rows[0][0], name=rows[0][1], created_at=rows[0][2]) if rows else None

    async def list(self) -> builtins.list[tuple[Group, int]]:
        """Lists all groups by name, with the number of their members."""
        sql = """
            SELECT id, name, created_at,
                (SELECT COUNT(*) FROM group_members WHERE group_id = user_groups.id)
            FROM user_groups ORDER BY name
        """
        rows = await self._database.scan(sql)
        return [(Group(id=id, name=name, created_at=at), count) for id, name, at, count in rows]

    async def of_user(self, user_id: str) -> builtins.list[Group]:
        """Lists the groups of a user by name."""
        sql = """
            SELECT id, name, created_at FROM user_groups
            WHERE id IN (SELECT group_id FROM group_members WHERE user_id = :user_id) ORDER BY name
        """
        rows = await self._database.scan(sql, user_id=user_id)
        return [Group(id=id, name=name, created_at=at) for id, name, at in rows]

    async def members(self, group_id: str) -> builtins.list[str]:
        """Lists the names of the members."""
        sql = """
            SELECT name FROM users
            WHERE id IN (SELECT user_id FROM group_members WHERE group_id = :group_id) ORDER BY name
        """
        return [row[0] for row in await self._database.scan(sql, group_id=group_id)]

    async def add_members(self, group_id: str, user_ids: Sequence[str]) -> None:
        """Adds members. Users that are already members are ignored."""
        sql = """
            INSERT INTO group_members (group_id, user_id, created_at)
            VALUES (:group_id, :user_id, :created_at)
            ON CONFLICT (group_id, user_id) DO NOTHING
        """
        key = {"group_id": group_id, "created_at": now()}
        values = [{**key, "user_id": user_id} for user_id in user_ids]
        await self._database.write(*(SqlStatement(sql, each) for each in values))

    async def remove_members(self, group_id: str, user_ids: Sequence[str]) -> int:
        """Removes members. Returns how many of these users were members."""
        sql = "DELETE FROM group_members WHERE group_id = :group_id AND user_id = :user_id"
        values = [{"group_id": group_id, "user_id": user_id} for user_id in user_ids]
        changed = await self._database.write(*(SqlStatement(sql, each) for each in values))
        return sum(each.row_count for each in changed)

    async def remove(self, group_id: str) -> bool:
        """Deletes a group. Its members lose access to the abilities that were shared with the group."""
        sql = "DELETE FROM user_groups WHERE id = :id"
        (changed,) = await self._database.write(SqlStatement(sql, {"id": group_id}))
        return changed.row_count == 1
