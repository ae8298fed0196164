"""Schema migrations. Each numbered SQL file is applied once, in order, in its own transaction."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import NamedTuple

from hutch.errors import StoreError

# Records the applied migrations. Created before the first migration.
MIGRATIONS_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    number BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL
)
"""
SELECT_LATEST = "SELECT max(number) FROM migrations"
INSERT_APPLIED = "INSERT INTO migrations (number, name, applied_at) VALUES (:number, :name, :applied_at)"

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    number: int
    name: str
    statements: tuple[str, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    folders = [entry for entry in resources.files("hutch.store.migrations").iterdir() if entry.is_dir()]
    migrations = sorted(
        Migration(int(match[1]), match[2], _statements(file.read_text(encoding="utf-8")))
        for folder in folders
        for file in folder.iterdir()
        if (match := _FILE.fullmatch(file.name))
    )
    if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise AssertionError("migrations are numbered 1, 2, …, without a gap")
    return tuple(migrations)


def next_migration(latest: int, where: str, last: int | None = None) -> Migration | None:
    """Returns the migration that follows `latest`, up to the number `last`. Raises StoreError if a newer
    version of Hutch created the tables.
    """
    known = migrations()
    if last is not None and last > len(known):
        raise StoreError(
            f"The backup was made by a newer Hutch: its tables have version {last},"
            f" and this Hutch knows versions up to {len(known)}.",
            remedy="Restore it with the newer Hutch.",
        )
    if latest > len(known):
        raise StoreError(
            f"{where}: was made by a newer Hutch: its tables have version {latest},"
            f" and this Hutch knows versions up to {len(known)}.",
            remedy="Run the newer Hutch, or use another database.",
        )
    return known[latest] if latest < (len(known) if last is None else last) else None


def to_postgres(statement: str) -> str:
    """Converts a statement for PostgreSQL.

    Text is compared by bytes as in SQLite, regardless of the collation of the database.
    """
    statement = re.sub(r"/\*postgres: (.*?)\*/", r"\1", statement)
    return re.sub(r"\bTEXT\b", 'TEXT COLLATE "C"', statement)


def _statements(text: str) -> tuple[str, ...]:
    code = re.sub(r"--.*", "", text)
    return tuple(part.strip() for part in code.split(";") if part.strip())
