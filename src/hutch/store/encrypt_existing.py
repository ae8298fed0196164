"""Lists the encrypted columns, and encrypts rows that were written before migration 5.

Migration 5 leaves a mark in the meta table. The first process that needs flows encrypts the rows and removes
the mark. The encryption can be interrupted and resumed, and several processes can work on it at the same
time.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from hutch.store.backends.base import Database, SqlStatement, Values, replace_unstorable
from hutch.store.encryption import Cipher
from hutch.store.tables import flows, journal
from hutch.store.tables.journal import JournalEntry
from hutch.store.tables.meta import MetaTable

PLAINTEXT_MARK = "journal.clear"
PAGE_ROWS = 50
"""Rows per query. Each row may be large."""
_CIPHERTEXT_PREFIX = "hutch1."  # JSON text never starts with this prefix
_KINDS_WITH_SUBJECT = ("step", "approval", "approved")
_FIRST_KEYS = {"version": -1, "number": -1}

ContextFunction = Callable[..., tuple[str, ...]]


class EncryptedColumn(NamedTuple):
    table: str
    name: str
    key: tuple[str, ...]
    """Key columns of the row. They are also the arguments of `context`."""
    context: ContextFunction


ENCRYPTED_COLUMNS = (
    *(
        EncryptedColumn("flow_runs", name, ("run_id", "owner"), partial(journal.run_context, name))
        for name in journal.ENCRYPTED_COLUMNS
    ),
    EncryptedColumn("flow_requests", "body", ("run_id", "id"), journal.request_context),
    EncryptedColumn("flows", "document", ("owner", "name", "version"), flows.document_context),
    EncryptedColumn("flow_versions", "document", ("owner", "name", "version"), flows.document_context),
)


async def data_key_ids(database: Database) -> set[str]:
    """Returns the ids of all data keys that encrypt a row. Reads every row. Raises StoreError."""
    ids: set[str] = set()
    # Encrypted columns that are not in ENCRYPTED_COLUMNS, because they never contained plaintext, or because
    # `encrypt_existing` has separate code for them.
    others = [
        ("flow_journal", "body"),
        ("runs", "error_message"),
        ("run_contents", "content"),
        ("checkpoint_parts", "data"),
        ("checkpoints", "result"),
        ("pending_calls", "answer"),
        ("pending_calls", "question"),
        ("pending_calls", "message"),
        ("recorded_calls", "answer"),
        ("stored_value_parts", "data"),
        ("session_parts", "data"),
        ("queued_runs", "request"),
        ("queued_runs", "webhook"),
        ("queued_runs", "result"),
        ("followed_events", "data"),
        ("webhook_deliveries", "message"),
        ("webhook_secrets", "secret"),
        ("saved_scripts", "code"),
        ("schedules", "options"),
        ("triggers", "options"),
    ]
    for table, name in [*(column[:2] for column in ENCRYPTED_COLUMNS), *others]:
        # Cut out the key id. The format of the ciphertext is `hutch1.<key id>.…`.
        sql = f"SELECT DISTINCT substr({name}, 8, 12) FROM {table} WHERE {name} IS NOT NULL"
        ids |= {row[0] for row in await database.scan(sql)}
    return ids


async def encrypt_existing(database: Database, meta: MetaTable, cipher: Cipher) -> None:
    """Encrypts all plaintext rows. Does nothing if they are already encrypted. Raises StoreError."""
    if await meta.get(PLAINTEXT_MARK) is None:
        return
    for column in ENCRYPTED_COLUMNS:
        await _encrypt_column(database, column, cipher)
    await _encrypt_journal(database, cipher)
    await meta.remove(PLAINTEXT_MARK)


async def _encrypt_column(database: Database, column: EncryptedColumn, cipher: Cipher) -> None:
    sql = f"""
        UPDATE {column.table} SET {column.name} = :encrypted
        WHERE {" AND ".join(f"{name} = :{name}" for name in column.key)} AND {column.name} = :plaintext
    """

    def change(row: Values) -> SqlStatement | None:
        *key, plaintext = row
        if plaintext is None or plaintext.startswith(_CIPHERTEXT_PREFIX):
            return None
        encrypted = cipher.encrypt(plaintext, *column.context(*key))
        return SqlStatement(
            sql, {**dict(zip(column.key, key, strict=True)), "plaintext": plaintext, "encrypted": encrypted}
        )

    async for rows in _pages(database, column.table, column.key, column.name):
        await _write(database, map(change, rows))


async def _encrypt_journal(database: Database, cipher: Cipher) -> None:
    sql = """
        UPDATE flow_journal SET body = :encrypted, kind = :kind, subject = :subject
        WHERE run_id = :run_id AND number = :number AND body = :plaintext
    """

    def change(row: Values) -> SqlStatement | None:
        run_id, number, step, plaintext = row
        if plaintext.startswith(_CIPHERTEXT_PREFIX):
            return None
        entry = _entry(number, step, plaintext)
        encrypted = cipher.encrypt(plaintext, *journal.entry_context(run_id, entry))
        values = {"run_id": run_id, "number": number, "kind": entry.kind, "subject": entry.subject}
        return SqlStatement(sql, {**values, "plaintext": plaintext, "encrypted": encrypted})

    async for rows in _pages(database, "flow_journal", ("run_id", "number"), "step, body"):
        await _write(database, map(change, rows))


def _entry(number: int, step: str | None, body: str) -> JournalEntry:
    """Builds a journal entry from a plaintext row. Reads its kind and subject from the body."""
    value = json.loads(body)
    fields = value if isinstance(value, dict) else {}
    if step is not None:
        return JournalEntry(number, body, step, replace_unstorable(str(fields.get("state", ""))))
    kind = replace_unstorable(str(fields.get("type", "")))
    subject = fields.get("step_id") if kind in _KINDS_WITH_SUBJECT else None
    return JournalEntry(
        number, body, None, kind, None if subject is None else replace_unstorable(str(subject))
    )


async def _write(database: Database, changes: Iterable[SqlStatement | None]) -> None:
    """Writes the changes. Their WHERE clauses skip rows that another process has encrypted meanwhile."""
    if statements := [change for change in changes if change is not None]:
        await database.write(*statements)


async def _pages(
    database: Database, table: str, key: tuple[str, ...], columns: str
) -> AsyncIterator[list[Values]]:
    names = ", ".join(key)
    sql = f"""
        SELECT {names}, {columns} FROM {table}
        WHERE ({names}) > ({", ".join(f":{name}" for name in key)}) ORDER BY {names} LIMIT {PAGE_ROWS}
    """
    last: dict[str, Any] = {name: _FIRST_KEYS.get(name, "") for name in key}
    while rows := await database.scan(sql, **last):
        yield rows
        last = dict(zip(key, rows[-1], strict=False))
