"""The columns that are sealed: which keys they need, and sealing what is of before they were.

That is done once, by whoever first needs something of flows; a mark says that it is to be done (migration 5).
Who is interrupted leaves some of it sealed, and the next goes on; of several at once each does what the
others have not done.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from hutch.store import flows, journal
from hutch.store.database import Database, Statement, Values, mended
from hutch.store.journal import Entry
from hutch.store.meta import Meta
from hutch.store.seals import Cipher

MARK = "journal.clear"
AT_ONCE = 50
"""Rows in memory: each may be long."""
_SEALED = "hutch1."  # no JSON begins so
_WAITED_FOR = ("step", "approval", "approved")
_BEFORE_ALL = {"version": -1, "number": -1}

About = Callable[..., tuple[str, ...]]


class Column(NamedTuple):
    table: str
    name: str
    key: tuple[str, ...]
    """By which a row is found, and what its text is about."""
    about: About


COLUMNS = (
    *(
        Column("flow_runs", name, ("run_id", "owner"), partial(journal.about_run, name))
        for name in journal.SEALED
    ),
    Column("flow_requests", "body", ("run_id", "id"), journal.about_request),
    Column("flows", "document", ("owner", "name", "version"), flows.about),
    Column("flow_versions", "document", ("owner", "name", "version"), flows.about),
)


async def key_ids(database: Database) -> set[str]:
    """The data keys that something is sealed with. Reads everything. Raises StoreError."""
    found: set[str] = set()
    for table, name in [*(each[:2] for each in COLUMNS), ("flow_journal", "body")]:
        # As a sealed text has it: `hutch1.<key id>.…`
        sql = f"SELECT DISTINCT substr({name}, 8, 12) FROM {table} WHERE {name} IS NOT NULL"
        found |= {row[0] for row in await database.scan(sql)}
    return found


async def seal_older(database: Database, meta: Meta, cipher: Cipher) -> None:
    """Seals all that is not; nothing happens where that was done. Raises StoreError."""
    if await meta.get(MARK) is None:
        return
    for column in COLUMNS:
        await _seal_column(database, column, cipher)
    await _seal_journal(database, cipher)
    await meta.remove(MARK)


async def _seal_column(database: Database, column: Column, cipher: Cipher) -> None:
    sql = f"""
        UPDATE {column.table} SET {column.name} = :sealed
        WHERE {" AND ".join(f"{name} = :{name}" for name in column.key)} AND {column.name} = :clear
    """

    def change(row: Values) -> Statement | None:
        *key, clear = row
        if clear is None or clear.startswith(_SEALED):
            return None
        sealed = cipher.seal(clear, *column.about(*key))
        return Statement(sql, {**dict(zip(column.key, key, strict=True)), "clear": clear, "sealed": sealed})

    async for rows in _pages(database, column.table, column.key, column.name):
        await _write(database, map(change, rows))


async def _seal_journal(database: Database, cipher: Cipher) -> None:
    sql = """
        UPDATE flow_journal SET body = :sealed, kind = :kind, subject = :subject
        WHERE run_id = :run_id AND number = :number AND body = :clear
    """

    def change(row: Values) -> Statement | None:
        run_id, number, step, clear = row
        if clear.startswith(_SEALED):
            return None
        entry = _entry(number, step, clear)
        sealed = cipher.seal(clear, *journal.about_entry(run_id, entry))
        values = {"run_id": run_id, "number": number, "kind": entry.kind, "subject": entry.subject}
        return Statement(sql, {**values, "clear": clear, "sealed": sealed})

    async for rows in _pages(database, "flow_journal", ("run_id", "number"), "step, body"):
        await _write(database, map(change, rows))


def _entry(number: int, step: str | None, body: str) -> Entry:
    """With what stood in its text alone, where it may be what no column keeps."""
    value = json.loads(body)
    told = value if isinstance(value, dict) else {}
    if step is not None:
        return Entry(number, body, step, mended(str(told.get("state", ""))))
    kind = mended(str(told.get("type", "")))
    subject = told.get("step_id") if kind in _WAITED_FOR else None
    return Entry(number, body, None, kind, None if subject is None else mended(str(subject)))


async def _write(database: Database, changes: Iterable[Statement | None]) -> None:
    """Where a text is not as it was read, others have changed it, and sealed it."""
    if statements := [each for each in changes if each is not None]:
        await database.write(*statements)


async def _pages(
    database: Database, table: str, key: tuple[str, ...], columns: str
) -> AsyncIterator[list[Values]]:
    """All rows, in the order of their keys."""
    names = ", ".join(key)
    sql = f"""
        SELECT {names}, {columns} FROM {table}
        WHERE ({names}) > ({", ".join(f":{name}" for name in key)}) ORDER BY {names} LIMIT {AT_ONCE}
    """
    last: dict[str, Any] = {name: _BEFORE_ALL.get(name, "") for name in key}
    while found := await database.scan(sql, **last):
        yield found
        last = dict(zip(key, found[-1], strict=False))
