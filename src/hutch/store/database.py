"""What the tables need of a database: few, static statements with `:name` parameters, each method one hop."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from hutch.errors import InvalidText

Values = tuple[Any, ...]
Parameters = Mapping[str, Any]

_UNSTORABLE = re.compile(r"[\0\ud800-\udfff]")
# Neither the second colon of `::`, nor one inside a word.
_NAME = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_POSTGRES = re.compile(r"/\*postgres: (.*?)\*/")


class Statement(NamedTuple):
    sql: str
    parameters: Parameters


class Changed(NamedTuple):
    """What a statement did: what it returned, and how many rows it touched."""

    rows: list[Values]
    touched: int


class Database(Protocol):
    """SQLite or PostgreSQL. Every method raises StoreError.

    Those that write also raise Taken, where something is there already, and InvalidText.
    """

    async def read(self, sql: str, **parameters: Any) -> list[Values]:
        """A few rows, found by an index."""

    async def scan(self, sql: str, **parameters: Any) -> list[Values]:
        """Many rows, or such as have to be searched for."""

    async def write(self, *statements: Statement) -> list[Changed]:
        """All of them or none; when this returns, it is kept."""

    async def write_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        """One statement for many rows; how many were touched."""

    async def close(self) -> None: ...


def asked(parameters: Parameters) -> Parameters:
    """Parameters of a question. A text that no database keeps equals nothing that is kept."""
    if all(_storable(value) for value in parameters.values()):
        return parameters
    return {
        name: [item if _storable(item) else None for item in value]
        if isinstance(value, list)
        else (value if _storable(value) else None)
        for name, value in parameters.items()
    }


def told(parameters: Parameters) -> Parameters:
    """Parameters of what is to be kept. Raises InvalidText for one that no database keeps."""
    for name, value in parameters.items():
        if not _storable(value):
            raise InvalidText(f"{name}: expected text without NUL characters and lone surrogates.")
    return parameters


def _storable(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_storable, value))
    return not isinstance(value, str) or not _UNSTORABLE.search(value)


def mended(value: Any) -> Any:
    """A text with a mark in the place of what no database keeps; anything else as it is."""
    return value if _storable(value) else _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def bind(sql: str, parameters: Parameters) -> tuple[str, Parameters]:
    """Makes `IN :names` of a list work: as many parameters as it has items."""
    sizes = tuple((name, len(value)) for name, value in parameters.items() if isinstance(value, list))
    if not sizes:
        return sql, parameters
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, list):
            flat.update((f"{name}_{number}", item) for number, item in enumerate(value))
        else:
            flat[name] = value
    return _spread(sql, sizes), flat


@lru_cache(256)
def _spread(sql: str, sizes: tuple[tuple[str, int], ...]) -> str:
    lists = {
        # An empty list has no item that anything could equal.
        name: f"({', '.join(f':{name}_{number}' for number in range(size)) or 'NULL'})"
        for name, size in sizes
    }
    return _NAME.sub(lambda found: lists.get(found[1], found[0]), sql)


@lru_cache(512)
def for_psycopg(sql: str) -> bytes:
    """The same with parameters as psycopg writes them, and with what a comment says is PostgreSQL's own."""
    own = _POSTGRES.sub(r"\1", sql)
    return _NAME.sub(r"%(\1)s", own.replace("%", "%%")).encode()
