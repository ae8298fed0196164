"""Table of the users and groups with whom the owners of abilities share them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from hutch.errors import InvalidInput
from hutch.store.backends.base import Database, SqlStatement
from hutch.store.models import AbilityShare, Group, User, now

MAX_SHARES = 1_000
"""Maximum number of users and groups per ability."""

# Abilities that other users share with a user by name or through a group. `created_at` is the time from which
# the user has had access. For a group, it is the time when the ability was shared or when the user joined,
# whichever is later.
SHARED_WITH_USER = """
    SELECT owner_id, ability_id, created_at FROM ability_shares
    WHERE user_id = :user_id AND owner_id <> :user_id
    UNION ALL
    SELECT ability_shares.owner_id, ability_shares.ability_id,
        CASE WHEN group_members.created_at > ability_shares.created_at
            THEN group_members.created_at ELSE ability_shares.created_at END AS created_at
    FROM group_members JOIN ability_shares ON ability_shares.group_id = group_members.group_id
    WHERE group_members.user_id = :user_id AND ability_shares.owner_id <> :user_id
"""


class AbilityShareTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, ability_id: str, owner_id: str) -> builtins.list[AbilityShare]:
        """Lists the users, then the groups, by name."""
        sql = """
            SELECT users.name, user_groups.name, ability_shares.created_at FROM ability_shares
            LEFT JOIN users ON users.id = ability_shares.user_id
            LEFT JOIN user_groups ON user_groups.id = ability_shares.group_id
            WHERE ability_shares.owner_id = :owner_id AND ability_shares.ability_id = :ability_id
        """
        rows = await self._database.scan(sql, owner_id=owner_id, ability_id=ability_id)
        shares = [AbilityShare(user=user, group=group, created_at=at) for user, group, at in rows]
        return sorted(shares, key=lambda share: (share.user is None, share.user or share.group))

    async def add(
        self, ability_id: str, owner_id: str, users: Sequence[User], groups: Sequence[Group]
    ) -> None:
        """Shares an ability of this owner. Raises InvalidInput if that would exceed MAX_SHARES."""
        count = len(await self.list(ability_id, owner_id)) + len(users) + len(groups)
        if count > MAX_SHARES:
            raise InvalidInput("users", f"expected at most {MAX_SHARES} users and groups, got {count}.")
        sql = """
            INSERT INTO ability_shares (owner_id, ability_id, user_id, group_id, created_at)
            VALUES (:owner_id, :ability_id, :user_id, :group_id, :created_at) ON CONFLICT DO NOTHING
        """
        key = {"owner_id": owner_id, "ability_id": ability_id, "created_at": now()}
        rows: builtins.list[dict[str, Any]] = []
        rows += [{**key, "user_id": user.id, "group_id": None} for user in users]
        rows += [{**key, "user_id": None, "group_id": group.id} for group in groups]
        await self._database.write(*(SqlStatement(sql, row) for row in rows))

    async def remove(
        self, ability_id: str, owner_id: str, users: Sequence[User], groups: Sequence[Group]
    ) -> int:
        """Stops sharing an ability with these users and groups. Returns how many of these shares existed."""
        where = "owner_id = :owner_id AND ability_id = :ability_id"
        key = {"owner_id": owner_id, "ability_id": ability_id}
        statements = [
            SqlStatement(
                f"DELETE FROM ability_shares WHERE {where} AND user_id = :user_id",
                {**key, "user_id": user.id},
            )
            for user in users
        ]
        statements += [
            SqlStatement(
                f"DELETE FROM ability_shares WHERE {where} AND group_id = :group_id",
                {**key, "group_id": group.id},
            )
            for group in groups
        ]
        return sum(each.row_count for each in await self._database.write(*statements))
