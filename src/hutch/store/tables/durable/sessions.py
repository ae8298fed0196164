"""Tables of stateful sessions and of the states after their last turns."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence

import msgspec

from hutch.store.backends.base import Database, SqlStatement
from hutch.store.encryption import ColumnEncryption
from hutch.store.models import new_id, now

_FIELDS = (
    "session_key",
    "owner",
    "name",
    "bundle",
    "turn",
    "version",
    "holder",
    "held_until",
    "created_at",
    "used_at",
    "expires_at",
    "bytes",
)
_COLUMNS = ", ".join(_FIELDS)
MAX_LISTED = 1_000

_INSERT = f"""
    INSERT INTO sessions ({_COLUMNS}) SELECT {", ".join(f":{name}" for name in _FIELDS)}
    WHERE (SELECT COUNT(*) FROM sessions WHERE owner = :owner) < :max_count
    ON CONFLICT (owner, name) DO NOTHING
"""
# A session can be taken if no process holds it. A process that died holds its sessions until `held_until`.
_TAKE = f"""
    UPDATE sessions SET holder = :holder, held_until = :held_until
    WHERE owner = :owner AND name = :name AND expires_at > :now
        AND (holder IS NULL OR holder = :holder OR held_until < :now)
    RETURNING {_COLUMNS}
"""
_SAVE = """
    UPDATE sessions SET bundle = :bundle, turn = :turn, version = :version, holder = :next_holder,
        held_until = :held_until, used_at = :used_at, expires_at = :expires_at, bytes = :bytes
    WHERE session_key = :session_key AND holder = :holder AND version = :previous
"""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    session_key: str
    owner: str
    name: str
    bundle: str
    turn: int = 0
    version: str = msgspec.field(default_factory=new_id)
    """Random value that changes with each write."""
    holder: str | None = None
    held_until: str | None = None
    created_at: str = msgspec.field(default_factory=now)
    used_at: str = msgspec.field(default_factory=now)
    expires_at: str
    bytes: int = 0


class SessionTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def insert(self, row: SessionRow, max_count: int) -> bool:
        """Adds a session. Returns False if it exists, or if its owner has `max_count` sessions."""
        values = {**msgspec.structs.asdict(row), "max_count": max_count}
        (changed,) = await self._database.write(SqlStatement(_INSERT, values))
        return changed.row_count == 1

    async def take(self, owner: str, name: str, holder: str, held_until: str) -> SessionRow | None:
        """Reserves a session for the process `holder`. Returns None if there is no such session, it has
        expired, or another process holds it.
        """
        values = {"owner": owner, "name": name, "holder": holder, "held_until": held_until, "now": now()}
        (changed,) = await self._database.write(SqlStatement(_TAKE, values))
        return _row(changed.rows[0]) if changed.rows else None

    async def get(self, owner: str, name: str) -> SessionRow | None:
        sql = f"SELECT {_COLUMNS} FROM sessions WHERE owner = :owner AND name = :name"
        rows = await self._database.read(sql, owner=owner, name=name)
        return _row(rows[0]) if rows else None

    async def list(self, owner: str) -> builtins.list[SessionRow]:
        """Lists the sessions of an owner that have not expired, the most recently used first."""
        sql = f"""
            SELECT {_COLUMNS} FROM sessions WHERE owner = :owner AND expires_at > :now
            ORDER BY used_at DESC, name LIMIT {MAX_LISTED}
        """
        return [_row(row) for row in await self._database.scan(sql, owner=owner, now=now())]

    async def stored_bytes(self, owner: str) -> int:
        sql = "SELECT COALESCE(SUM(bytes), 0) FROM sessions WHERE owner = :owner"
        return int((await self._database.scan(sql, owner=owner))[0][0])

    async def state(self, row: SessionRow, turn: int) -> tuple[builtins.list[bytes], dict[int, int]]:
        """Returns the parts of the state after a turn, and the sizes of all stored states by turn. There are
        no parts if this state is not stored. Raises VaultError.
        """
        sql = """
            SELECT turn, LENGTH(data), CASE WHEN turn = :turn THEN data END FROM session_parts
            WHERE session_key = :session_key ORDER BY turn, part
        """
        rows = await self._database.scan(sql, session_key=row.session_key, turn=turn)
        sizes: dict[int, int] = {}
        for number, size, _ in rows:
            sizes[number] = sizes.get(number, 0) + size
        texts = [text for _, _, text in rows if text is not None]
        parts = [
            await self._encryption.decrypt_bytes(text, *_part_context(row, turn, number, len(texts)))
            for number, text in enumerate(texts)
        ]
        return parts, sizes

    async def save(
        self,
        row: SessionRow,
        states: Mapping[int, Sequence[bytes]],
        kept: Sequence[int],
        holder: str,
        previous: str,
    ) -> bool:
        """Stores the states after some turns, in parts, and deletes the states of all turns that are not in
        `kept`. `row` contains the new version and the new holder. Returns False if another process has used
        the session since the version `previous`.
        """
        fields = msgspec.structs.asdict(row)
        values = {**fields, "holder": holder, "next_holder": row.holder, "previous": previous}
        # The other statements apply only if the first one has written this version, which is a random value.
        is_saved = "SELECT 1 FROM sessions WHERE session_key = :session_key AND version = :version"
        guarded = {"session_key": row.session_key, "version": row.version}
        inserts = []
        for turn, parts in states.items():
            for number, part in enumerate(parts):
                text = await self._encryption.encrypt_bytes(
                    part, *_part_context(row, turn, number, len(parts))
                )
                inserts.append({**guarded, "turn": turn, "part": number, "data": text})
        unchanged = [turn for turn in kept if turn not in states]
        results = await self._database.write(
            SqlStatement(_SAVE, values),
            SqlStatement(
                "DELETE FROM session_parts WHERE session_key = :session_key"
                f" AND turn NOT IN :kept AND EXISTS ({is_saved})",
                {**guarded, "kept": unchanged or [-1]},
            ),
            *(
                SqlStatement(
                    "INSERT INTO session_parts (session_key, turn, part, data)"
                    f" SELECT :session_key, :turn, :part, :data WHERE EXISTS ({is_saved})",
                    insert,
                )
                for insert in inserts
            ),
        )
        return results[0].row_count == 1

    async def extend(self, session_key: str, holder: str, held_until: str) -> bool:
        """Extends the time for which a process holds a session. Returns False if the process does not hold
        the session.
        """
        sql = """
            UPDATE sessions SET held_until = :held_until
            WHERE session_key = :session_key AND holder = :holder
        """
        values = {"session_key": session_key, "holder": holder, "held_until": held_until}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def release(self, session_key: str, holder: str) -> None:
        """Releases a session whose state was not changed, so that other processes can use it."""
        sql = """
            UPDATE sessions SET holder = NULL, held_until = NULL
            WHERE session_key = :session_key AND holder = :holder
        """
        await self._database.write(SqlStatement(sql, {"session_key": session_key, "holder": holder}))

    async def delete(self, owner: str, name: str, holder: str) -> bool:
        """Deletes a session, even if it has expired, unless another process holds it."""
        sql = """
            DELETE FROM sessions WHERE owner = :owner AND name = :name
                AND (holder IS NULL OR holder = :holder OR held_until < :now)
        """
        values = {"owner": owner, "name": name, "holder": holder, "now": now()}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def delete_expired(self, before: str) -> int:
        """Deletes sessions that expired before a time. Returns their number."""
        sql = "DELETE FROM sessions WHERE expires_at < :before"
        (changed,) = await self._database.write(SqlStatement(sql, {"before": before}))
        return changed.row_count


def _row(values: Sequence[object]) -> SessionRow:
    return msgspec.convert(dict(zip(_FIELDS, values, strict=True)), SessionRow)


def _part_context(row: SessionRow, turn: int, number: int, count: int) -> tuple[str, ...]:
    return "session", row.session_key, row.owner, row.name, row.bundle, str(turn), f"{number}/{count}"
