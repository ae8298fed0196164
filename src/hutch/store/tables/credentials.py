"""Table of credentials, with encrypted values by user, domain, kind and name."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

import msgspec

from hutch.store.backends.base import Database, SqlStatement, Values
from hutch.store.models import Credential

COLUMNS = "id, user_id, domain, kind, key, sealed, hint, state, expired_at, cause, created_at, updated_at"
_FIELDS = tuple(COLUMNS.split(", "))
_ORDER = "ORDER BY domain, kind, lower(key)"


def _credential_from_row(row: Values) -> Credential:
    return Credential(**dict(zip(_FIELDS, row, strict=True)))


class CredentialTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, credential: Credential) -> str:
        """Stores an active credential. Replaces a credential with the same user, domain, kind and name.

        Returns the id of the row. A replaced credential keeps its id.
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
        (changed,) = await self._database.write(SqlStatement(sql, msgspec.structs.asdict(credential)))
        return str(changed.rows[0][0])

    async def for_domains(self, user_id: str, domains: Iterable[str]) -> builtins.list[Credential]:
        """Lists the credentials of exactly these domains, whether active or expired."""
        sql = f"SELECT {COLUMNS} FROM credentials WHERE user_id = :user_id AND domain IN :domains {_ORDER}"
        rows = await self._database.read(sql, user_id=user_id, domains=sorted(set(domains)))
        return [_credential_from_row(row) for row in rows]

    async def list(self, user_id: str) -> builtins.list[Credential]:
        sql = f"SELECT {COLUMNS} FROM credentials WHERE user_id = :user_id {_ORDER}"
        return [_credential_from_row(row) for row in await self._database.scan(sql, user_id=user_id)]

    async def remove(self, user_id: str, domain: str, key: str | None = None, kind: str | None = None) -> int:
        """Deletes the credentials of a domain, limited to a name or a kind if given. Returns the number of
        deleted rows.
        """
        sql = """
            DELETE FROM credentials WHERE user_id = :user_id AND domain = :domain
                AND (CAST(:key AS TEXT) IS NULL OR lower(key) = lower(:key))
                AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
        """
        values = {"user_id": user_id, "domain": domain, "key": key, "kind": kind}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count

    async def expire(self, ids: Iterable[str], at: str, cause: str) -> int:
        """Marks credentials as expired. Credentials that are already expired keep their time and cause."""
        sql = """
            UPDATE credentials SET state = 'expired', expired_at = :at, cause = :cause
            WHERE id IN :ids AND state = 'active'
        """
        values = {"ids": sorted(ids), "at": at, "cause": cause}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count

    async def revive(self, ids: Iterable[str]) -> int:
        """Marks expired credentials as active."""
        sql = """
            UPDATE credentials SET state = 'active', expired_at = NULL, cause = NULL
            WHERE id IN :ids AND state = 'expired'
        """
        (changed,) = await self._database.write(SqlStatement(sql, {"ids": sorted(ids)}))
        return changed.row_count

    async def replace_sealed(self, id: str, old_sealed: str, new_sealed: str) -> bool:
        """Replaces the encrypted value if it is still `old_sealed`. `new_sealed` is the same value, encrypted
        with another key. Returns False if the encrypted value has changed.
        """
        sql = "UPDATE credentials SET sealed = :new WHERE id = :id AND sealed = :old"
        values = {"id": id, "old": old_sealed, "new": new_sealed}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1
