"""Tables of saved scripts, schedules and triggers."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from hutch.errors import AlreadyExists
from hutch.store.backends.base import Database, SqlStatement
from hutch.store.encryption import ColumnEncryption

TargetKind = Literal["flow", "script"]
MissedPolicy = Literal["skip", "once", "all"]
ScriptEngine = Literal["script", "quickjs", "deno"]
SignatureScheme = Literal["none", "github", "stripe", "standard"]

MAX_LISTED = 1_000
R = TypeVar("R", bound="StarterRow")


class SavedScript(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    name: str
    engine: ScriptEngine
    updated_at: int = 0
    code: str = ""

    def __repr__(self) -> str:
        return f"SavedScript({self.name!r}, owner {self.owner})"


class StarterRow(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that schedules and triggers have in common. Both start runs of a target."""

    id: str
    owner: str
    scopes: str | None = None
    """JSON list of the scopes of the API key that added the row; None if the operator added it."""
    name: str
    target_kind: TargetKind
    target: str
    is_paused: bool = False
    created_at: int = 0
    last_at: int | None = None
    last_run_id: str | None = None


class Schedule(StarterRow, frozen=True, kw_only=True):
    cron: str
    timezone: str = "UTC"
    missed: MissedPolicy = "skip"
    next_at: int = 0


class Trigger(StarterRow, frozen=True, kw_only=True):
    token_digest: str
    signature: SignatureScheme = "none"


class SavedScriptTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def put(self, script: SavedScript) -> None:
        sql = """
            INSERT INTO saved_scripts (owner, name, engine, updated_at, code)
            VALUES (:owner, :name, :engine, clock_ms(), :code)
            ON CONFLICT (owner, name) DO UPDATE SET
                engine = excluded.engine, updated_at = excluded.updated_at, code = excluded.code
        """
        context = _script_context(script.owner, script.name)
        values = {
            **msgspec.structs.asdict(script),
            "code": await self._encryption.encrypt(script.code, *context),
        }
        await self._database.write(SqlStatement(sql, values))

    async def get(self, owner: str, name: str) -> SavedScript | None:
        sql = """
            SELECT engine, updated_at, code FROM saved_scripts WHERE owner = :owner AND name = :name
        """
        rows = await self._database.read(sql, owner=owner, name=name)
        if not rows:
            return None
        engine, updated_at, code = rows[0]
        text = await self._encryption.decrypt(code, *_script_context(owner, name))
        return SavedScript(owner=owner, name=name, engine=engine, updated_at=updated_at, code=text)

    async def list(self, owner: str) -> builtins.list[SavedScript]:
        """Lists the scripts of an owner without their code."""
        sql = f"""
            SELECT name, engine, updated_at FROM saved_scripts WHERE owner = :owner
            ORDER BY name LIMIT {MAX_LISTED}
        """
        return [
            SavedScript(owner=owner, name=name, engine=engine, updated_at=updated_at)
            for name, engine, updated_at in await self._database.scan(sql, owner=owner)
        ]

    async def remove(self, owner: str, name: str) -> bool:
        sql = "DELETE FROM saved_scripts WHERE owner = :owner AND name = :name"
        (changed,) = await self._database.write(SqlStatement(sql, {"owner": owner, "name": name}))
        return changed.row_count == 1


class _StarterTable:
    """Base of the tables of schedules and triggers. `options` are encrypted JSON text."""

    table: str
    row_type: type[Any]

    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption
        self._fields = tuple(self.row_type.__struct_fields__)
        self._columns = ", ".join(self._fields)

    async def _add(self, row: StarterRow, options: bytes, expressions: Mapping[str, str]) -> None:
        values = ", ".join(expressions.get(name, f":{name}") for name in self._fields)
        sql = f"INSERT INTO {self.table} ({self._columns}, options) VALUES ({values}, :options)"
        encrypted = await self._encryption.encrypt_bytes(options, *self._context(row.id))
        try:
            await self._database.write(
                SqlStatement(sql, {**msgspec.structs.asdict(row), "options": encrypted})
            )
        except AlreadyExists:
            raise AlreadyExists(
                f"{row.name!r} already exists. Remove it first, or choose another name."
            ) from None

    async def options(self, id: str) -> bytes:
        """Returns the options as JSON text. Raises VaultError."""
        rows = await self._database.read(f"SELECT options FROM {self.table} WHERE id = :id", id=id)
        return await self._encryption.decrypt_bytes(rows[0][0], *self._context(id)) if rows else b"{}"

    async def _rows(self, condition: str, **values: Any) -> builtins.list[Any]:
        sql = f"""
            SELECT {self._columns} FROM {self.table} WHERE {condition}
            ORDER BY owner, name LIMIT {MAX_LISTED}
        """
        return [self._row(row) for row in await self._database.scan(sql, **values)]

    async def by_id(self, id: str) -> Any:
        """Returns the row with this id, of any owner. Returns None if there is no such row."""
        rows = await self._rows("id = :id", id=id)
        return rows[0] if rows else None

    async def remove(self, id: str) -> bool:
        sql = f"DELETE FROM {self.table} WHERE id = :id"
        (changed,) = await self._database.write(SqlStatement(sql, {"id": id}))
        return changed.row_count == 1

    def _row(self, values: Sequence[Any]) -> Any:
        fields = dict(zip(self._fields, values, strict=True))
        return self.row_type(**{**fields, "is_paused": bool(fields["is_paused"])})

    def _context(self, id: str) -> tuple[str, ...]:
        return self.table, id


class ScheduleTable(_StarterTable):
    table = "schedules"
    row_type = Schedule

    async def add(self, row: Schedule, options: bytes) -> None:
        """Adds a schedule. Raises AlreadyExists if the owner has one with this name."""
        await self._add(row, options, {"created_at": "clock_ms()"})

    async def list(self, owner: str | None = None) -> builtins.list[Schedule]:
        return await self._rows("TRUE") if owner is None else await self._rows("owner = :owner", owner=owner)

    async def find(self, owner: str, name: str) -> Schedule | None:
        """Finds a schedule by its name or its id."""
        rows = await self._rows("owner = :owner AND (name = :name OR id = :name)", owner=owner, name=name)
        return rows[0] if rows else None

    async def due(self) -> builtins.list[Schedule]:
        """Lists the schedules that are due. Owners take turns: first the most overdue schedule of each owner,
        then the second of each, and so on.
        """
        sql = f"""
            SELECT {self._columns} FROM schedules WHERE NOT is_paused AND next_at <= clock_ms()
            ORDER BY ROW_NUMBER() OVER (PARTITION BY owner ORDER BY next_at), next_at LIMIT {MAX_LISTED}
        """
        return [self._row(row) for row in await self._database.scan(sql)]

    async def next_in(self) -> int | None:
        """Returns the milliseconds until the earliest next tick of all schedules; None if there is no
        schedule.
        """
        sql = "SELECT MIN(next_at) - clock_ms() FROM schedules WHERE NOT is_paused"
        return (await self._database.read(sql))[0][0]  # type: ignore[no-any-return]

    async def advance(self, row: Schedule, next_at: int, run_id: str | None) -> bool:
        """Sets the next tick. Returns False if another server has already set it."""
        sql = """
            UPDATE schedules SET next_at = :next_at, last_at = clock_ms(),
                last_run_id = COALESCE(:run_id, last_run_id)
            WHERE id = :id AND next_at = :old
        """
        values = {"id": row.id, "old": row.next_at, "next_at": next_at, "run_id": run_id}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def pause(self, id: str, *, is_paused: bool, next_at: int) -> bool:
        sql = "UPDATE schedules SET is_paused = :is_paused, next_at = :next_at WHERE id = :id"
        values = {"id": id, "is_paused": is_paused, "next_at": next_at}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1


class TriggerTable(_StarterTable):
    table = "triggers"
    row_type = Trigger

    async def add(self, row: Trigger, options: bytes) -> None:
        """Adds a trigger. Raises AlreadyExists if the owner has one with this name."""
        await self._add(row, options, {"created_at": "clock_ms()"})

    async def list(self, owner: str | None = None) -> builtins.list[Trigger]:
        return await self._rows("TRUE") if owner is None else await self._rows("owner = :owner", owner=owner)

    async def find(self, owner: str, name: str) -> Trigger | None:
        """Finds a trigger by its name or its id."""
        rows = await self._rows("owner = :owner AND (name = :name OR id = :name)", owner=owner, name=name)
        return rows[0] if rows else None

    async def by_token(self, digest: str) -> Trigger | None:
        rows = await self._rows("token_digest = :digest", digest=digest)
        return rows[0] if rows else None

    async def pause(self, id: str, *, is_paused: bool) -> bool:
        sql = "UPDATE triggers SET is_paused = :is_paused WHERE id = :id"
        (changed,) = await self._database.write(SqlStatement(sql, {"id": id, "is_paused": is_paused}))
        return changed.row_count == 1

    async def note_run(self, id: str, run_id: str) -> None:
        sql = "UPDATE triggers SET last_at = clock_ms(), last_run_id = :run_id WHERE id = :id"
        await self._database.write(SqlStatement(sql, {"id": id, "run_id": run_id}))


def _script_context(owner: str, name: str) -> tuple[str, ...]:
    return "saved script", owner, name
