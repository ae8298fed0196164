"""Flows by name: each owner's, and all their versions."""

from __future__ import annotations

import builtins

from hutch.store.database import Database, Statement, Values
from hutch.store.rows import FlowHead, FlowRow

_HEAD_FIELDS = tuple(FlowHead.__struct_fields__)
_FIELDS = tuple(FlowRow.__struct_fields__)
HEAD = ", ".join(_HEAD_FIELDS)
COLUMNS = ", ".join(_FIELDS)
MOST_LISTED = 1_000


def head(row: Values) -> FlowHead:
    return FlowHead(**dict(zip(_HEAD_FIELDS, row, strict=True)))


def flow(row: Values) -> FlowRow:
    return FlowRow(**dict(zip(_FIELDS, row, strict=True)))


class Flows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, owner: str, name: str, document: str, at: str) -> FlowRow:
        """Keeps it as the newest version. What is kept already word for word stays that version."""
        upsert = """
            INSERT INTO flows (owner, name, version, document, created_at, updated_at)
            VALUES (:owner, :name, 1, :document, :at, :at)
            ON CONFLICT (owner, name) DO UPDATE SET
                version = flows.version + 1, document = excluded.document, updated_at = excluded.updated_at
            WHERE flows.document <> excluded.document
        """
        keep = f"""
            INSERT INTO flow_versions ({COLUMNS})
            SELECT {COLUMNS} FROM flows WHERE owner = :owner AND name = :name
            ON CONFLICT (owner, name, version) DO NOTHING
        """
        # The row is ours until the transaction ends, so this is what we wrote.
        give = f"UPDATE flows SET name = name WHERE owner = :owner AND name = :name RETURNING {COLUMNS}"
        who = {"owner": owner, "name": name}
        changed = await self._database.write(
            Statement(upsert, {**who, "document": document, "at": at}),
            Statement(keep, who),
            Statement(give, who),
        )
        return flow(changed[2].rows[0])

    async def get(self, owner: str, name: str, version: int | None = None) -> FlowRow | None:
        """The newest, or the version that is named."""
        values: dict[str, str | int] = {"owner": owner, "name": name}
        sql = f"SELECT {COLUMNS} FROM flows WHERE owner = :owner AND name = :name"
        if version is not None:
            values["version"] = version
            sql = f"""
                SELECT {COLUMNS} FROM flow_versions
                WHERE owner = :owner AND name = :name AND version = :version
            """
        found = await self._database.read(sql, **values)
        return flow(found[0]) if found else None

    async def list(self, owner: str, *, limit: int = MOST_LISTED, after: str = "") -> builtins.list[FlowHead]:
        """By name. `after` is the last name that was seen."""
        sql = f"""
            SELECT {HEAD} FROM flows WHERE owner = :owner AND name > :after ORDER BY name LIMIT :limit
        """
        most = max(0, min(limit, MOST_LISTED))
        found = await self._database.scan(sql, owner=owner, after=after, limit=most)
        return [head(row) for row in found]

    async def versions(self, owner: str, name: str) -> builtins.list[FlowRow]:
        """All of them, the newest first."""
        sql = f"""
            SELECT {COLUMNS} FROM flow_versions WHERE owner = :owner AND name = :name ORDER BY version DESC
        """
        return [flow(row) for row in await self._database.scan(sql, owner=owner, name=name)]

    async def remove(self, owner: str, name: str) -> bool:
        """With all its versions. Runs of it stay."""
        sql = "DELETE FROM flows WHERE owner = :owner AND name = :name"
        (changed,) = await self._database.write(Statement(sql, {"owner": owner, "name": name}))
        return changed.touched == 1
