"""What went wrong with a database, in words for those who run it. Never with values, nor with a password."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import HutchError, StoreError, Taken

if TYPE_CHECKING:
    import sqlite3

    import psycopg


def of_sqlite(error: sqlite3.Error, file: Path) -> HutchError:
    import sqlite3 as lite

    extended = getattr(error, "sqlite_errorcode", 0) or 0
    match extended & 0xFF:
        case lite.SQLITE_CONSTRAINT if extended in (
            lite.SQLITE_CONSTRAINT_UNIQUE,
            lite.SQLITE_CONSTRAINT_PRIMARYKEY,
        ):
            return Taken()
        case lite.SQLITE_BUSY | lite.SQLITE_LOCKED:
            return StoreError(
                f"{file}: is locked: another process has been writing to it for too long.",
                remedy="Try again; if it stays so, find that process (`fuser -v` on the file) and end it.",
            )
        case lite.SQLITE_FULL:
            return StoreError(f"{file}: cannot be written: the disk is full.", remedy="Make room on it.")
        case lite.SQLITE_READONLY | lite.SQLITE_PERM | lite.SQLITE_CANTOPEN:
            return StoreError(
                f"{file}: cannot be opened or written.",
                remedy="See that its folder is yours and there, or set HUTCH_HOME to one that you may write.",
            )
        case lite.SQLITE_NOTADB | lite.SQLITE_CORRUPT:
            return StoreError(
                f"{file}: is no SQLite database, or a damaged one.", remedy="Restore it from a backup."
            )
        case lite.SQLITE_IOERR:
            return StoreError(f"{file}: the disk failed to read or write it.", remedy="Check the disk.")
        case _:
            name = getattr(error, "sqlite_errorname", None) or type(error).__name__
            return StoreError(f"{file}: the database failed ({name}).")


def of_postgres(error: psycopg.Error | OSError, where: str) -> HutchError:
    state = getattr(error, "sqlstate", None) or ""
    match state:
        case "23505":
            return Taken()
        case "55P03" | "57014" | "40P01":
            return StoreError(
                f"{where}: is locked: another session has held what is needed for too long.",
                remedy="Try again; if it stays so, find that session in pg_stat_activity and end it.",
            )
        case "53100":
            return StoreError(f"{where}: cannot be written: its disk is full.", remedy="Make room on it.")
        case "53300":
            return StoreError(f"{where}: has no connection left for us.", remedy="Raise its max_connections.")
        case "25006":
            return StoreError(f"{where}: is read-only.", remedy="Use the URL of the primary.")
        case "42501" | "28000" | "28P01" | "3D000":
            return StoreError(f"{where}: {_first_line(error)}", remedy="Check HUTCH_DATABASE_URL.")
        case "" if "FATAL:" in str(error):
            return StoreError(f"{where}: {_first_line(error)}", remedy="Check HUTCH_DATABASE_URL.")
        case "" | "57P01" | "57P02" | "57P03" | "08000" | "08001" | "08003" | "08004" | "08006":
            return StoreError(
                f"{where}: cannot be reached{_reason(error)}.",
                remedy="See that it runs, and that HUTCH_DATABASE_URL names it rightly.",
            )
        case _:
            return StoreError(f"{where}: the database failed ({state}).")


def _first_line(error: BaseException) -> str:
    """What the server said of who may come in: it names users and databases, no passwords."""
    text = re.sub(r"^.*?(FATAL|ERROR):\s+", "", str(error).strip(), flags=re.S)
    return text.partition("\n")[0].rstrip(".") + "."


def _reason(error: BaseException) -> str:
    """Such as "Connection refused"."""
    found = re.search(r"(?:failed: |\] )([A-Z][\w ]+)$", str(error), re.M)
    return f" ({found[1]})" if found else ""
