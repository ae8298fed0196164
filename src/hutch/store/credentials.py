"""Credentials: sealed values by user, domain, kind and name."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

import msgspec

from hutch.store.database import Database, Statement, Values
from hutch.store.rows import Credential

COLUMNS = "id, user_id, domain, kind, key, sealed, hint, state, expired_at, cause, created_at, updated_at"
_FIELDS = tuple(COLUMNS.split(", "))
_ORDER = "ORDER BY domain, kind, lower(key)"


def credential(row: Values) -> Credential:
    return Credential(**dict(zip(_FIELDS, row, strict=True)))


class Credentials:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, credential: Credential) -> str:
        """Keeps it in the place of the one of that user, domain, kind and name, whatever state that was in.

        Gives the id of what is kept: an older one keeps its own.
        """
        sql = """
            INSERT INTO credentials
                (id, user_id, domain, kind, key, sealed, hint, state, created_at, updated_at)
            VALUES
                (:id, :user_id, :domain, :kind, :key, :sealed, :hint, 'active', :created_at, :updated_at)
            ON CONFLICT (user_id, domain, kind, lower(key)) DO UPDATE SET
                key = excluded.key, sealed = excluded.sealed, hint = excluded.hint, state = 'active',
                expired_at = NULL, cause = NULL, updated_at = excluded.updated_at
            RETURNING id
        """
        (changed,) = await self._database.write(Statement(sql, msgspec.structs.asdict(credential)))
        return str(changed.rows[0][0])

    async def for_domains(self, user_id: str, domains: Iterable[str]) -> builtins.list[Credential]:
        """Those of exactly these domains, in any state."""
        sql = f"SELECT {COLUMNS} FROM credentials WHERE user_id = :user_id AND domain IN :domains {_ORDER}"
        found = await self._database.read(sql, user_id=user_id, domains=sorted(set(domains)))
        return [credential(row) for row in found]

    async def list(self, user_id: str) -> builtins.list[Credential]:
        sql = f"SELECT {COLUMNS} FROM credentials WHERE user_id = :user_id {_ORDER}"
        return [credential(row) for row in await self._database.scan(sql, user_id=user_id)]

    async def remove(self, user_id: str, domain: str, key: str | None = None, kind: str | None = None) -> int:
        """All of a domain, or those of a name or kind; how many there were."""
        sql = """
            DELETE FROM credentials WHERE user_id = :user_id AND domain = :domain
                AND (CAST(:key AS TEXT) IS NULL OR lower(key) = lower(:key))
                AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
        """
        values = {"user_id": user_id, "domain": domain, "key": key, "kind": kind}
        (changed,) = await self._database.write(Statement(sql, values))
        return changed.touched

    async def expire(self, ids: Iterable[str], at: str, cause: str) -> int:
        """Marks them; one that is marked already keeps its time and cause."""
        sql = """
            UPDATE credentials SET state = 'expired', expired_at = :at, cause = :cause
            WHERE id IN :ids AND state = 'active'
        """
        values = {"ids": sorted(ids), "at": at, "cause": cause}
        (changed,) = await self._database.write(Statement(sql, values))
        return changed.touched

    async def revive(self, ids: Iterable[str]) -> int:
        """Takes the mark from them."""
        sql = """
            UPDATE credentials SET state = 'active', expired_at = NULL, cause = NULL
            WHERE id IN :ids AND state = 'expired'
        """
        (changed,) = await self._database.write(Statement(sql, {"ids": sorted(ids)}))
        return changed.touched

    async def reseal(self, id: str, old_sealed: str, new_sealed: str) -> bool:
        """Replaces what is sealed if it is still `old_sealed`: the same value under another key."""
        sql = "UPDATE credentials SET sealed = :new WHERE id = :id AND sealed = :old"
        values = {"id": id, "old": old_sealed, "new": new_sealed}
        (changed,) = await self._database.write(Statement(sql, values))
        return changed.touched == 1
