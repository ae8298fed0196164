"""Interface of the database backends. SQL is static with `:name` parameters, and each method makes one round
trip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from hutch.errors import InvalidText, UnstorableValue

Values = tuple[Any, ...]
Parameters = Mapping[str, Any]

_UNSTORABLE = re.compile(r"[\0\ud800-\udfff]")
# A parameter is a colon and a name. The colons of casts (`::`) and colons inside words do not match.
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_POSTGRES_ONLY = re.compile(r"/\*postgres: (.*?)\*/")
CLOCK_FUNCTION = "clock_ms"
"""SQL function that returns the time of the database in milliseconds since 1970. In PostgreSQL it is replaced
by an expression.
"""
_POSTGRES_CLOCK = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


class SqlStatement(NamedTuple):
    sql: str
    parameters: Parameters


class SqlBatch(NamedTuple):
    """One statement for many rows."""

    sql: str
    rows: Sequence[Parameters]


class WriteResult(NamedTuple):
    """Rows that a statement returned, and the number of rows that it changed."""

    rows: list[Values]
    row_count: int


class TableRows(NamedTuple):
    """Some rows of a table."""

    table: str
    columns: Sequence[str]
    rows: list[Values]

    @property
    def insert_sql(self) -> str:
        values = ", ".join(f":{column}" for column in self.columns)
        return f"INSERT INTO {self.table} ({', '.join(self.columns)}) VALUES ({values})"

    @property
    def parameters(self) -> list[Parameters]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


OnRows = Callable[[str, Sequence[str], list[Values]], None]

EXPORT_ROWS = 500
"""Number of rows that an export reads at once."""


class Database(Protocol):
    """Database backend: SQLite or PostgreSQL. Every method raises StoreError.

    Methods that write also raise AlreadyExists for a violated unique constraint, InvalidText and
    UnstorableValue.
    """

    async def read(self, sql: str, **parameters: Any) -> list[Values]:
        """Reads a few rows with the help of an index."""

    async def scan(self, sql: str, **parameters: Any) -> list[Values]:
        """Reads many rows, or searches without an index."""

    async def search(self, sql: str, max_seconds: float, **parameters: Any) -> list[Values]:
        """Reads like `scan`. Raises SearchTimeout after `max_seconds`."""

    async def write(self, *statements: SqlStatement) -> list[WriteResult]:
        """Executes all statements or none of them. They are durable when the method returns."""

    async def write_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        """Executes one statement for many rows. Returns how many rows changed."""

    async def write_batches(self, *batches: SqlBatch) -> None:
        """Executes all batches in one transaction."""

    async def notify(self, channel: str) -> None:
        """Wakes up the processes that listen to a channel. Does nothing in SQLite."""

    async def listen(self, listeners: Mapping[str, Callable[[], None]]) -> None:
        """Calls the listener of a channel once at the start, and after each `notify` of any process, until
        this call is cancelled. Raises StoreError if the connection is lost. SQLite has no notifications, so
        there listeners are never called.
        """

    async def schema_version(self) -> int:
        """Returns the number of the last migration that was applied."""

    async def export_tables(self, tables: Sequence[str], on_rows: OnRows) -> None:
        """Reads all rows of the tables in one snapshot. Calls `on_rows` with the table, its columns and a few
        rows at a time, at least once for each table.
        """

    async def import_tables(self, batches: Iterable[TableRows]) -> None:
        """Inserts all rows in one transaction."""

    async def close(self) -> None: ...


def nullify_unstorable(parameters: Parameters) -> Parameters:
    """Replaces values that cannot be stored with NULL in the parameters of a query, because no row can match
    them.
    """
    if all(_is_storable(value) for value in parameters.values()):
        return parameters
    return {
        name: [item if _is_storable(item) else None for item in value]
        if isinstance(value, list)
        else (value if _is_storable(value) else None)
        for name, value in parameters.items()
    }


def check_storable(parameters: Parameters) -> Parameters:
    """Returns the parameters of a write unchanged. Raises InvalidText for text that cannot be stored, and
    UnstorableValue for integers of more than 64 bits.
    """
    for name, value in parameters.items():
        # Most values are NULL or ASCII. Check these inline, because a function call would take longer than
        # the check.
        if value is None or (type(value) is str and value.isascii() and "\0" not in value):
            continue
        if not _is_storable(value):
            if isinstance(value, int):
                raise UnstorableValue(f"{name}: expected an integer of at most 64 bits.")
            raise InvalidText(f"{name}: expected text without NUL characters and lone surrogates.")
    return parameters


def _is_storable(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_storable, value))
    if not isinstance(value, str):
        return not isinstance(value, int) or -(2**63) <= value < 2**63
    # Most texts are ASCII, and NUL is the only ASCII character that cannot be stored. Searching for it takes
    # a thirtieth of the time of the regular expression.
    return "\0" not in value if value.isascii() else not _UNSTORABLE.search(value)


def replace_unstorable(value: Any) -> Any:
    """Replaces characters that cannot be stored. Values that are not text stay unchanged."""
    if not isinstance(value, str) or _is_storable(value):
        return value
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def expand_lists(sql: str, parameters: Parameters) -> tuple[str, Parameters]:
    """Expands list parameters to one parameter per item, so that `IN :names` works."""
    sizes = tuple((name, len(value)) for name, value in parameters.items() if isinstance(value, list))
    if not sizes:
        return sql, parameters
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, list):
            flat.update((f"{name}_{number}", item) for number, item in enumerate(value))
        else:
            flat[name] = value
    return _expand_sql(sql, sizes), flat


@lru_cache(256)
def _expand_sql(sql: str, sizes: tuple[tuple[str, int], ...]) -> str:
    lists = {
        # An empty list becomes NULL, which equals nothing.
        name: f"({', '.join(f':{name}_{number}' for number in range(size)) or 'NULL'})"
        for name, size in sizes
    }
    return _PARAMETER.sub(lambda match: lists.get(match[1], match[0]), sql)


@lru_cache(512)
def to_psycopg(sql: str) -> bytes:
    """Converts `:name` parameters to psycopg's format, and uncomments the parts of the SQL that are only for
    PostgreSQL.
    """
    sql = _POSTGRES_ONLY.sub(r"\1", sql).replace(f"{CLOCK_FUNCTION}()", _POSTGRES_CLOCK)
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")).encode()
