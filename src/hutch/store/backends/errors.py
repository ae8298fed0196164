"""Translates database errors into StoreError. The messages contain no values and no passwords."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import AlreadyExists, HutchError, StoreError, UnstorableValue

if TYPE_CHECKING:
    import sqlite3

    import psycopg


def from_sqlite(error: sqlite3.Error, file: Path) -> HutchError:
    import sqlite3 as lite

    extended = getattr(error, "sqlite_errorcode", 0) or 0
    match extended & 0xFF:
        case lite.SQLITE_CONSTRAINT if extended in (
            lite.SQLITE_CONSTRAINT_UNIQUE,
            lite.SQLITE_CONSTRAINT_PRIMARYKEY,
        ):
            return AlreadyExists()
        case lite.SQLITE_TOOBIG:
            return UnstorableValue()
        case lite.SQLITE_BUSY | lite.SQLITE_LOCKED:
            return StoreError(
                f"{file}: is locked: another process has been writing to it for too long.",
                remedy="Try again. If it persists, find that process (`fuser -v` on the file) and stop it.",
            )
        case lite.SQLITE_FULL:
            return StoreError(f"{file}: cannot be written: the disk is full.", remedy="Free some space.")
        case lite.SQLITE_READONLY | lite.SQLITE_PERM | lite.SQLITE_CANTOPEN:
            return StoreError(
                f"{file}: cannot be opened or written.",
                remedy="Check that its folder exists and is yours, or set HUTCH_HOME to another one.",
            )
        case lite.SQLITE_NOTADB | lite.SQLITE_CORRUPT:
            return StoreError(
                f"{file}: is not a SQLite database, or is damaged.", remedy="Restore it from a backup."
            )
        case lite.SQLITE_IOERR:
            return StoreError(f"{file}: the disk failed to read or write it.", remedy="Check the disk.")
        case _:
            name = getattr(error, "sqlite_errorname", None) or type(error).__name__
            return StoreError(f"{file}: the database failed ({name}).")


def from_postgres(error: psycopg.Error | OSError, where: str) -> HutchError:
    state = getattr(error, "sqlstate", None) or ""
    match state:
        case "23505":
            return AlreadyExists()
        # SQLSTATE class 22 means that a value is out of range, 54000 that a value is too long, for example
        # for an index.
        case _ if state.startswith("22") or state == "54000":
            return UnstorableValue()
        case "55P03" | "57014" | "40P01":
            return StoreError(
                f"{where}: is locked: another session has held a lock for too long.",
                remedy="Try again. If it persists, find that session in pg_stat_activity and end it.",
            )
        case "53100":
            return StoreError(f"{where}: cannot be written: its disk is full.", remedy="Free some space.")
        case "53300":
            return StoreError(f"{where}: has no connection left.", remedy="Raise its max_connections.")
        case "25006":
            return StoreError(f"{where}: is read-only.", remedy="Use the URL of the primary.")
        case "42501" | "28000" | "28P01" | "3D000":
            return StoreError(f"{where}: {_first_line(error)}", remedy="Check HUTCH_DATABASE_URL.")
        case "" if "FATAL:" in str(error):
            return StoreError(f"{where}: {_first_line(error)}", remedy="Check HUTCH_DATABASE_URL.")
        case "" | "57P01" | "57P02" | "57P03" | "08000" | "08001" | "08003" | "08004" | "08006":
            return StoreError(
                f"{where}: cannot be reached{_reason(error)}.",
                remedy="Check that it is running and that HUTCH_DATABASE_URL is correct.",
            )
        case _:
            return StoreError(f"{where}: the database failed ({state}).")


def _first_line(error: BaseException) -> str:
    """Returns the first line of the server's message, without its prefix. Call this only for messages about
    access, which contain names of users and databases, but no passwords.
    """
    text = re.sub(r"^.*?(FATAL|ERROR):\s+", "", str(error).strip(), flags=re.S)
    return text.partition("\n")[0].rstrip(".") + "."


def _reason(error: BaseException) -> str:
    """Returns the cause in parentheses, such as " (Connection refused)", or an empty text if the message has
    none.
    """
    match = re.search(r"(?:failed: |\] )([A-Z][\w ]+)$", str(error), re.M)
    return f" ({match[1]})" if match else ""
