"""Table of flows, per owner and with all versions. Documents are encrypted."""

from __future__ import annotations

import builtins

import msgspec

from hutch.store.backends.base import Database, SqlStatement, Values
from hutch.store.encryption import ColumnEncryption
from hutch.store.models import FlowHead, FlowRow

_HEAD_FIELDS = tuple(FlowHead.__struct_fields__)
_FIELDS = tuple(FlowRow.__struct_fields__)
HEAD_COLUMNS = ", ".join(_HEAD_FIELDS)
COLUMNS = ", ".join(_FIELDS)
MAX_LISTED = 1_000


def _flow_head_from_row(row: Values) -> FlowHead:
    return FlowHead(**dict(zip(_HEAD_FIELDS, row, strict=True)))


def document_context(owner: str, name: str, version: int) -> tuple[str, ...]:
    return "flow", owner, name, str(version)


class FlowTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def put(self, owner: str, name: str, document: str, at: str) -> FlowRow:
        """Stores a new version, unless the newest version has the same document."""
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
            # If another process has stored this version first, try again with the next number.
            if await self._insert_version(row):
                return row

    async def _insert_version(self, row: FlowRow) -> bool:
        """Inserts a version. Returns False if another process stored this version first."""
        insert = f"""
            INSERT INTO flows ({COLUMNS}) VALUES ({", ".join(f":{name}" for name in _FIELDS)})
            ON CONFLICT (owner, name) DO NOTHING
        """
        update = """
            UPDATE flows SET version = :version, document = :document, updated_at = :updated_at
            WHERE owner = :owner AND name = :name AND version = :version - 1
        """
        # Copies the row only if this process has just written it. The condition compares the ciphertext of
        # `document`, because every encryption gives another ciphertext.
        add_version = f"""
            INSERT INTO flow_versions ({COLUMNS})
            SELECT {COLUMNS} FROM flows WHERE owner = :owner AND name = :name AND document = :document
            ON CONFLICT (owner, name, version) DO NOTHING
        """
        context = document_context(row.owner, row.name, row.version)
        encrypted = await self._encryption.encrypt(row.document, *context)
        values = {**msgspec.structs.asdict(row), "document": encrypted}
        changed = await self._database.write(
            SqlStatement(insert if row.version == 1 else update, values), SqlStatement(add_version, values)
        )
        return changed[0].row_count == 1

    async def get(self, owner: str, name: str, version: int | None = None) -> FlowRow | None:
        """Returns the given version, or the newest one."""
        await self._encryption.ready()
        values: dict[str, str | int] = {"owner": owner, "name": name}
        sql = f"SELECT {COLUMNS} FROM flows WHERE owner = :owner AND name = :name"
        if version is not None:
            values["version"] = version
            sql = f"""
                SELECT {COLUMNS} FROM flow_versions
                WHERE owner = :owner AND name = :name AND version = :version
            """
        rows = await self._database.read(sql, **values)
        return await self._flow(rows[0]) if rows else None

    async def newest_version(self, owner: str, name: str) -> int | None:
        """Returns the number of the newest version without its document, which may be large."""
        sql = "SELECT version FROM flows WHERE owner = :owner AND name = :name"
        rows = await self._database.read(sql, owner=owner, name=name)
        return rows[0][0] if rows else None

    async def list(self, owner: str, *, limit: int = MAX_LISTED, after: str = "") -> builtins.list[FlowHead]:
        """Lists flows ordered by name. `after` is the last name of the previous page."""
        sql = f"""
            SELECT {HEAD_COLUMNS} FROM flows WHERE owner = :owner AND name > :after ORDER BY name LIMIT :limit
        """
        limit = max(0, min(limit, MAX_LISTED))
        rows = await self._database.scan(sql, owner=owner, after=after, limit=limit)
        return [_flow_head_from_row(row) for row in rows]

    async def versions(self, owner: str, name: str) -> builtins.list[FlowRow]:
        """Lists all versions, newest first."""
        await self._encryption.ready()
        sql = f"""
            SELECT {COLUMNS} FROM flow_versions WHERE owner = :owner AND name = :name ORDER BY version DESC
        """
        return [await self._flow(row) for row in await self._database.scan(sql, owner=owner, name=name)]

    async def remove(self, owner: str, name: str) -> bool:
        """Deletes a flow and its versions, but not its runs."""
        sql = "DELETE FROM flows WHERE owner = :owner AND name = :name"
        (changed,) = await self._database.write(SqlStatement(sql, {"owner": owner, "name": name}))
        return changed.row_count == 1

    async def _flow(self, row: Values) -> FlowRow:
        values = dict(zip(_FIELDS, row, strict=True))
        context = document_context(values["owner"], values["name"], values["version"])
        return FlowRow(**{**values, "document": await self._encryption.decrypt(values["document"], *context)})
