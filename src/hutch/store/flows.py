"""Flows by name: each owner's, and all their versions. What they do is sealed."""

from __future__ import annotations

import builtins

import msgspec

from hutch.store.database import Database, Statement, Values
from hutch.store.rows import FlowHead, FlowRow
from hutch.store.seals import Seals

_HEAD_FIELDS = tuple(FlowHead.__struct_fields__)
_FIELDS = tuple(FlowRow.__struct_fields__)
HEAD = ", ".join(_HEAD_FIELDS)
COLUMNS = ", ".join(_FIELDS)
MOST_LISTED = 1_000


def head(row: Values) -> FlowHead:
    return FlowHead(**dict(zip(_HEAD_FIELDS, row, strict=True)))


def about(owner: str, name: str, version: int) -> tuple[str, ...]:
    """What a document is sealed with: it opens nowhere else."""
    return "flow", owner, name, str(version)


class Flows:
    def __init__(self, database: Database, seals: Seals) -> None:
        self._database = database
        self._seals = seals

    async def put(self, owner: str, name: str, document: str, at: str) -> FlowRow:
        """Keeps it as the newest version. What is kept already word for word stays that version."""
        while True:
            before = await self.get(owner, name)
            if before is not None and before.document == document:
                return before
            version, created_at = (1, at) if before is None else (before.version + 1, before.created_at)
            row = FlowRow(
                owner=owner,
                name=name,
                version=version,
                created_at=created_at,
                updated_at=at,
                document=document,
            )
            # If not, another came between, and so that one got somewhere.
            if await self._keep(row):
                return row

    async def _keep(self, row: FlowRow) -> bool:
        """Whether it is the next version still."""
        first = f"""
            INSERT INTO flows ({COLUMNS}) VALUES ({", ".join(f":{name}" for name in _FIELDS)})
            ON CONFLICT (owner, name) DO NOTHING
        """
        further = """
            UPDATE flows SET version = :version, document = :document, updated_at = :updated_at
            WHERE owner = :owner AND name = :name AND version = :version - 1
        """
        # No two sealed texts are the same: this is what we wrote, or nothing.
        keep = f"""
            INSERT INTO flow_versions ({COLUMNS})
            SELECT {COLUMNS} FROM flows WHERE owner = :owner AND name = :name AND document = :document
            ON CONFLICT (owner, name, version) DO NOTHING
        """
        sealed = await self._seals.seal(row.document, *about(row.owner, row.name, row.version))
        values = {**msgspec.structs.asdict(row), "document": sealed}
        changed = await self._database.write(
            Statement(first if row.version == 1 else further, values), Statement(keep, values)
        )
        return changed[0].touched == 1

    async def get(self, owner: str, name: str, version: int | None = None) -> FlowRow | None:
        """The newest, or the version that is named."""
        await self._seals.ready()
        values: dict[str, str | int] = {"owner": owner, "name": name}
        sql = f"SELECT {COLUMNS} FROM flows WHERE owner = :owner AND name = :name"
        if version is not None:
            values["version"] = version
            sql = f"""
                SELECT {COLUMNS} FROM flow_versions
                WHERE owner = :owner AND name = :name AND version = :version
            """
        found = await self._database.read(sql, **values)
        return await self._flow(found[0]) if found else None

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
        await self._seals.ready()
        sql = f"""
            SELECT {COLUMNS} FROM flow_versions WHERE owner = :owner AND name = :name ORDER BY version DESC
        """
        return [await self._flow(row) for row in await self._database.scan(sql, owner=owner, name=name)]

    async def remove(self, owner: str, name: str) -> bool:
        """With all its versions. Runs of it stay."""
        sql = "DELETE FROM flows WHERE owner = :owner AND name = :name"
        (changed,) = await self._database.write(Statement(sql, {"owner": owner, "name": name}))
        return changed.touched == 1

    async def _flow(self, row: Values) -> FlowRow:
        values = dict(zip(_FIELDS, row, strict=True))
        where = about(values["owner"], values["name"], values["version"])
        return FlowRow(**{**values, "document": await self._seals.unseal(values["document"], *where)})
