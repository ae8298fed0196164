"""Raw access to the tables, without the store."""

from __future__ import annotations

from typing import Any

from hutch.store.backends.base import SqlStatement
from hutch.store.store import Store

TABLES = ("meta", "users", "api_keys", "credentials", "abilities")


async def all_rows(store: Store) -> str:
    """Returns all rows as one text."""
    return "\n".join([repr(await store._database.scan(f"SELECT * FROM {table}")) for table in TABLES])


async def execute(store: Store, sql: str, **parameters: Any) -> None:
    await store._database.write(SqlStatement(sql, {k: v for k, v in parameters.items() if f":{k}" in sql}))
