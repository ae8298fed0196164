"""The tables brought up to date: numbered files, each applied once, in order, in a transaction of its own."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import NamedTuple

from hutch.errors import StoreError

# Which have been applied. It comes before the first of them.
TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    number BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL
)
"""
LATEST = "SELECT max(number) FROM migrations"
APPLIED = "INSERT INTO migrations (number, name, applied_at) VALUES (:number, :name, :applied_at)"

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    number: int
    name: str
    statements: tuple[str, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """All of them, in order."""
    found = []
    for file in resources.files("hutch.store.migrations").iterdir():
        if named := _FILE.fullmatch(file.name):
            found.append(Migration(int(named[1]), named[2], _statements(file.read_text(encoding="utf-8"))))
    found.sort()
    if [each.number for each in found] != list(range(1, len(found) + 1)):
        raise AssertionError("migrations are numbered 1, 2, …, without a gap")
    return tuple(found)


def after(latest: int, where: str) -> Migration | None:
    """The one that comes next. Raises StoreError if the tables are of a time to come."""
    known = migrations()
    if latest > len(known):
        raise StoreError(
            f"{where}: was made by a newer Hutch: its tables are of version {latest},"
            f" and this one knows {len(known)}.",
            remedy="Run the newer Hutch, or use another database.",
        )
    return known[latest] if latest < len(known) else None


def for_postgres(statement: str) -> str:
    """As SQLite has it, but for what a comment says is PostgreSQL's own.

    Texts sort and compare byte by byte, whatever the language of the database.
    """
    statement = re.sub(r"/\*postgres: (.*?)\*/", r"\1", statement)
    return re.sub(r"\bTEXT\b", 'TEXT COLLATE "C"', statement)


def _statements(text: str) -> tuple[str, ...]:
    code = re.sub(r"--.*", "", text)
    return tuple(part.strip() for part in code.split(";") if part.strip())
