"""What is really in the tables, and changes to them behind the store's back."""

from __future__ import annotations

from typing import Any

from hutch.store.database import Statement
from hutch.store.store import Store

TABLES = ("meta", "users", "api_keys", "credentials", "abilities")


async def everything(store: Store) -> str:
    """As one text."""
    return "\n".join([repr(await store._database.scan(f"SELECT * FROM {table}")) for table in TABLES])


async def execute(store: Store, sql: str, **parameters: Any) -> None:
    await store._database.write(Statement(sql, {k: v for k, v in parameters.items() if f":{k}" in sql}))
