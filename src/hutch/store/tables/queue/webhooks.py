"""Tables of webhook messages and of the secrets that sign them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from hutch.errors import VaultError
from hutch.store.backends.base import Database, SqlStatement
from hutch.store.encryption import ColumnEncryption
from hutch.store.tables.queue.queued_runs import ended_with

DeliveryState = Literal["pending", "delivered", "failed"]

MAX_LISTED = 1_000
MAX_DELETED = 1_000
MAX_CANDIDATES = 200


class DeliveryAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt to deliver a message."""

    at: int
    """Milliseconds since 1970."""
    duration_ms: int
    status: int | None = None
    """HTTP status of the response; None if there was none."""
    error: str | None = None


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    run_id: str
    owner: str
    event: str
    state: DeliveryState
    created_at: int
    next_at: int
    gives_up_at: int
    attempts: int
    history: str

    @property
    def attempt_list(self) -> list[DeliveryAttempt]:
        return msgspec.json.decode(self.history, type=list[DeliveryAttempt])


class TakenDelivery(msgspec.Struct, frozen=True):
    row: DeliveryRow
    message: bytes | None
    """Message to send, or None if it cannot be decrypted."""
    now: int
    """Time of the database when the message was taken."""


_FIELDS = tuple(DeliveryRow.__struct_fields__)
_COLUMNS = ", ".join(_FIELDS)
_IS_DUE = "state = 'pending' AND next_at <= clock_ms() AND held_until < clock_ms()"


class WebhookTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def statement(
        self, id: str, run_id: str, owner: str, event: str, generation: int, message: bytes, days_ms: int
    ) -> SqlStatement:
        """Returns a statement that adds a message. The statement does nothing unless the run has ended with
        this generation.
        """
        condition, values = ended_with(run_id, generation)
        sql = f"""
            INSERT INTO webhook_deliveries (
                id, run_id, owner, event, state, created_at, next_at, gives_up_at, attempts, held_until,
                history, message
            )
            SELECT :id, :run_id, :owner, :event, 'pending', clock_ms(), clock_ms(), clock_ms() + :days_ms, 0,
                0, '[]', :message
            WHERE {condition}
            ON CONFLICT (id) DO NOTHING
        """
        encrypted = await self._encryption.encrypt_bytes(message, *_context(id))
        fields = {"id": id, "owner": owner, "event": event, "days_ms": days_ms, "message": encrypted}
        return SqlStatement(sql, {**values, **fields})

    async def due(self, per_owner: int) -> builtins.list[tuple[str, str]]:
        """Returns ids and owners of messages that are due, at most `per_owner` of each owner."""
        sql = f"""
            SELECT id, owner FROM (
                SELECT id, owner, next_at,
                    ROW_NUMBER() OVER (PARTITION BY owner ORDER BY next_at, id) AS place
                FROM webhook_deliveries WHERE {_IS_DUE}
            ) AS due WHERE place <= :per_owner ORDER BY place, next_at LIMIT {MAX_CANDIDATES}
        """
        return [(id, owner) for id, owner in await self._database.scan(sql, per_owner=per_owner)]

    async def next_in(self) -> int | None:
        """Returns the milliseconds until the next message is due; None if there is none."""
        sql = "SELECT MIN(next_at) - clock_ms() FROM webhook_deliveries WHERE state = 'pending'"
        return (await self._database.read(sql))[0][0]  # type: ignore[no-any-return]

    async def take(self, ids: Sequence[str], holder: str, lease_ms: int) -> builtins.list[TakenDelivery]:
        """Takes due messages for the server `holder`. Leaves out messages that another server is sending."""
        sql = f"""
            UPDATE webhook_deliveries SET holder = :holder, held_until = clock_ms() + :lease_ms
            WHERE id IN (
                SELECT id FROM webhook_deliveries WHERE id IN :ids AND {_IS_DUE}
                /*postgres: FOR UPDATE SKIP LOCKED*/
            )
            RETURNING {_COLUMNS}, message, clock_ms()
        """
        values = {"ids": [*ids], "holder": holder, "lease_ms": lease_ms}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        taken = []
        for *fields, message, now in changed.rows:
            row = _row(fields)
            try:
                text = await self._encryption.decrypt_bytes(message, *_context(row.id))
            except VaultError:
                # Mark the message as unreadable instead of raising the error, so that the other messages can
                # be sent.
                text = None
            taken.append(TakenDelivery(row, text, now))
        return taken

    async def finish(
        self, id: str, holder: str, state: DeliveryState, history: str, next_in_ms: int = 0
    ) -> None:
        """Stores the result of an attempt."""
        sql = """
            UPDATE webhook_deliveries SET state = :state, attempts = attempts + 1, history = :history,
                next_at = clock_ms() + :next_in_ms, held_until = 0, holder = NULL
            WHERE id = :id AND holder = :holder
        """
        values = {"id": id, "holder": holder, "state": state, "history": history, "next_in_ms": next_in_ms}
        await self._database.write(SqlStatement(sql, values))

    async def send_again(self, id: str, days_ms: int) -> bool:
        """Makes a message due now. It is retried until it is delivered or `days_ms` have passed."""
        sql = """
            UPDATE webhook_deliveries SET state = 'pending', next_at = clock_ms(), held_until = 0,
                gives_up_at = clock_ms() + :days_ms
            WHERE id = :id
        """
        (changed,) = await self._database.write(SqlStatement(sql, {"id": id, "days_ms": days_ms}))
        return changed.row_count == 1

    async def get(self, id: str) -> DeliveryRow | None:
        sql = f"SELECT {_COLUMNS} FROM webhook_deliveries WHERE id = :id"
        rows = await self._database.read(sql, id=id)
        return _row(rows[0]) if rows else None

    async def list(
        self, *, owner: str | None = None, run_id: str | None = None, limit: int = MAX_LISTED
    ) -> builtins.list[DeliveryRow]:
        """Lists messages, newest first."""
        conditions = {"owner": owner, "run_id": run_id}
        given: dict[str, Any] = {name: value for name, value in conditions.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given) or "TRUE"
        sql = f"""
            SELECT {_COLUMNS} FROM webhook_deliveries WHERE {where}
            ORDER BY created_at DESC, id DESC LIMIT :limit
        """
        rows = await self._database.scan(sql, **given, limit=min(limit, MAX_LISTED))
        return [_row(row) for row in rows]

    async def counts(self, limit: int) -> dict[str, int]:
        """Returns the number of pending and of failed messages, at most `limit` of each."""
        # Write each state into the text instead of passing it as a parameter, because the index of a state is
        # used only if the database sees the state when it plans the query.
        sql = " UNION ALL ".join(
            f"""
            SELECT '{state}', COUNT(*) FROM (
                SELECT 1 FROM webhook_deliveries WHERE state = '{state}' LIMIT :limit
            ) AS counted_{state}
            """
            for state in ("pending", "failed")
        )
        return {state: int(count) for state, count in await self._database.scan(sql, limit=limit)}

    async def prune(self, before: int) -> int:
        """Deletes messages that were created before a time and are not pending."""
        sql = f"""
            DELETE FROM webhook_deliveries WHERE id IN (
                SELECT id FROM webhook_deliveries WHERE created_at < :before AND state <> 'pending'
                ORDER BY created_at LIMIT {MAX_DELETED}
            )
        """
        deleted = 0
        while True:
            (changed,) = await self._database.write(SqlStatement(sql, {"before": before}))
            deleted += changed.row_count
            if changed.row_count < MAX_DELETED:
                return deleted

    # --- secrets ---

    async def secret(self, owner: str) -> str | None:
        sql = "SELECT secret FROM webhook_secrets WHERE owner = :owner"
        rows = await self._database.read(sql, owner=owner)
        return await self._encryption.decrypt(rows[0][0], *_secret_context(owner)) if rows else None

    async def put_secret(self, owner: str, secret: str, *, replaces: bool) -> None:
        """Stores the secret of an owner. Without `replaces`, keeps an existing secret."""
        action = "DO UPDATE SET secret = excluded.secret, created_at = excluded.created_at"
        sql = f"""
            INSERT INTO webhook_secrets (owner, secret, created_at) VALUES (:owner, :secret, clock_ms())
            ON CONFLICT (owner) {action if replaces else "DO NOTHING"}
        """
        encrypted = await self._encryption.encrypt(secret, *_secret_context(owner))
        await self._database.write(SqlStatement(sql, {"owner": owner, "secret": encrypted}))


def _row(values: Sequence[Any]) -> DeliveryRow:
    return DeliveryRow(**dict(zip(_FIELDS, values, strict=True)))


def _context(id: str) -> tuple[str, ...]:
    return "webhook message", id


def _secret_context(owner: str) -> tuple[str, ...]:
    return "webhook secret", owner
