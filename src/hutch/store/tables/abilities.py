"""Table of abilities, per owner and with all versions, and full-text search."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec

from hutch.errors import AlreadyExists
from hutch.store.backends.base import Database, SqlStatement, Values
from hutch.store.models import Ability
from hutch.store.tables.ability_shares import SHARED_WITH_USER

SHARED_AUDIENCE = "*"
MAX_LISTED_ABILITIES = 100_000
MAX_SEARCH_RESULTS = 100
MAX_QUERY_ROWS = 50
"""Rows that one query reads for a page. Each row includes the code of the ability."""
MAX_PAGE_CHARS = 8 * 1024 * 1024
"""Size limit of a page or a search result. The ability that exceeds the limit is still included."""
MAX_SEARCH_WORDS = 8
"""Maximum number of words in a search. Further words are ignored."""
MAX_CANDIDATES = 100
"""Maximum number of candidates per search word, even if more abilities contain the word."""

MAX_WORDS = 400
MAX_WORD_CHARS = 64
_WORDS_PER_STATEMENT = 64

_FIELDS = tuple(Ability.__struct_fields__)
ABILITY_COLUMNS = ", ".join(f"abilities.{name}" for name in _FIELDS)
_NAMES = ", ".join(_FIELDS)
_LAST_CHARACTER = "\U0010ffff"

# Columns that a new version does not overwrite.
_NOT_UPDATED = ("ability_id", "owner_id", "version", "created_at")

# Condition for abilities that are shared with everyone. An ability is left out if the user has an ability
# with the same id.
_SHARED_BY_OTHERS = """shared AND NOT EXISTS (
    SELECT 1 FROM abilities AS own WHERE own.owner_id = :user_id AND own.ability_id = abilities.ability_id
)"""
# Abilities that are shared with the user by name or through a group, one per id. An ability is left out if
# the user has an ability with the same id, or if one with that id is shared with everyone. If several have
# the same id, the one that was shared first counts. So no other user can replace an ability that the user
# already runs.
_GRANTED = f"""
    SELECT owner_id, ability_id FROM (
        SELECT owner_id, ability_id,
            ROW_NUMBER() OVER (PARTITION BY ability_id ORDER BY created_at, owner_id) AS rank
        FROM ({SHARED_WITH_USER}) AS shares
    ) AS ranked_shares
    WHERE rank = 1 AND NOT EXISTS (
        SELECT 1 FROM abilities AS own
        WHERE own.owner_id = :user_id AND own.ability_id = ranked_shares.ability_id
    ) AND NOT EXISTS (
        SELECT 1 FROM abilities AS other WHERE other.shared AND other.ability_id = ranked_shares.ability_id
    )
"""

_WORD = re.compile(r"[^\W_]+")
# Splits `getUserByID` into get, user, by and id.
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _ability_from_row(row: Values) -> Ability:
    values = dict(zip(_FIELDS, row, strict=True))
    # Convert numbers to booleans, because SQLite has no booleans.
    values["shared"] = bool(values["shared"])
    values["requires_dynamic_headers"] = bool(values["requires_dynamic_headers"])
    return Ability(**values)


class AbilityTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, ability: Ability) -> int:
        """Stores a new version of the owner's ability and returns its number. Older versions stay.

        Raises AlreadyExists if the ability is shared with everyone and another user already shares an ability
        with the same id.
        """
        upsert = f"""
            INSERT INTO abilities ({_NAMES}) VALUES ({", ".join(f":{name}" for name in _FIELDS)})
            ON CONFLICT (owner_id, ability_id) DO UPDATE SET
                version = abilities.version + 1,
                {", ".join(f"{name} = excluded.{name}" for name in _FIELDS if name not in _NOT_UPDATED)}
            RETURNING version
        """
        add_version = f"""
            INSERT INTO ability_versions ({_NAMES})
            SELECT {_NAMES} FROM abilities WHERE owner_id = :owner_id AND ability_id = :ability_id
        """
        delete_words = "DELETE FROM ability_words WHERE owner_id = :owner_id AND ability_id = :ability_id"
        key = {"owner_id": ability.owner_id, "ability_id": ability.ability_id}
        values = {**msgspec.structs.asdict(ability), "version": 1}
        try:
            changed = await self._database.write(
                SqlStatement(upsert, values),
                SqlStatement(add_version, key),
                SqlStatement(delete_words, key),
                *_word_statements(ability),
            )
        except AlreadyExists:
            raise AlreadyExists(f"Another user already shares an ability {ability.ability_id!r}.") from None
        return int(changed[0].rows[0][0])

    async def get(self, ability_id: str, user_id: str) -> Ability | None:
        """Returns the user's own ability or, if there is none, one that is shared with everyone or with this
        user. Never returns any other ability of another user.
        """
        sql = f"""
            SELECT {ABILITY_COLUMNS} FROM abilities WHERE ability_id = :ability_id AND owner_id = :user_id
            UNION ALL
            SELECT {ABILITY_COLUMNS} FROM abilities
            WHERE ability_id = :ability_id AND shared AND owner_id <> :user_id
        """
        rows = await self._database.read(sql, ability_id=ability_id, user_id=user_id)
        if not rows:
            granted = f"""
                SELECT {ABILITY_COLUMNS} FROM ({SHARED_WITH_USER}) AS shares JOIN abilities
                    ON abilities.owner_id = shares.owner_id AND abilities.ability_id = shares.ability_id
                WHERE shares.ability_id = :ability_id ORDER BY shares.created_at, shares.owner_id LIMIT 1
            """
            rows = await self._database.read(granted, ability_id=ability_id, user_id=user_id)
        return min(
            map(_ability_from_row, rows), key=lambda ability: ability.owner_id != user_id, default=None
        )

    async def list(
        self, user_id: str, *, shared: bool = False, limit: int = MAX_LISTED_ABILITIES, after: str = ""
    ) -> builtins.list[Ability]:
        """Lists the user's own abilities, ordered by id. With `shared`, includes abilities of other users
        that are shared with everyone or with this user.

        Each id occurs once, because the user's own ability hides a shared one, as in `get`. `after` is the
        last id of the previous page.
        """
        condition = "owner_id = :user_id"
        if shared:
            granted = f"(abilities.owner_id, abilities.ability_id) IN ({_GRANTED})"
            condition = f"({condition} OR {_SHARED_BY_OTHERS} OR {granted})"
        sql = f"""
            SELECT {ABILITY_COLUMNS} FROM abilities WHERE {condition} AND ability_id > :after
            ORDER BY ability_id LIMIT :limit
        """
        limit = max(0, min(limit, MAX_LISTED_ABILITIES))
        rows = await self._database.scan(sql, user_id=user_id, after=after, limit=limit)
        return [_ability_from_row(row) for row in rows]

    async def list_all(self, limit: int) -> builtins.list[Ability]:
        """Lists the abilities of all users by name, with empty documents. Only for the operator."""
        columns = ", ".join("'' AS document" if name == "document" else name for name in _FIELDS)
        sql = f"SELECT {columns} FROM abilities ORDER BY name, owner_id LIMIT :limit"
        return [_ability_from_row(row) for row in await self._database.scan(sql, limit=limit)]

    async def page(
        self, user_id: str, *, shared: bool = False, limit: int, after: str = ""
    ) -> tuple[builtins.list[Ability], bool]:
        """Like `list`, but also limits the total size of the documents. The second value is True if there may
        be more abilities.
        """
        page: builtins.list[Ability] = []
        size = 0
        while len(page) < limit and size < MAX_PAGE_CHARS:
            count = min(MAX_QUERY_ROWS, limit - len(page))
            abilities = await self.list(user_id, shared=shared, limit=count, after=after)
            page += abilities
            if len(abilities) < count:
                return page, False
            size += sum(len(ability.document) for ability in abilities)
            after = abilities[-1].ability_id
        return page, True

    async def search(
        self, user_id: str, text: str, limit: int = 10, *, only_shared: bool = False
    ) -> builtins.list[Ability]:
        """Finds abilities that the user can run and that contain a word that begins with one of the words in
        `text`. Best matches come first. With `only_shared`, finds only abilities that are shared with
        everyone.
        """
        query = _split_words(text)[:MAX_SEARCH_WORDS]
        if not query or limit < 1:
            return []
        values: dict[str, Any] = {"user_id": user_id, "shared": SHARED_AUDIENCE}
        values |= {"limit": min(limit, MAX_SEARCH_RESULTS), "max_chars": MAX_PAGE_CHARS}
        for number, word in enumerate(query):
            values[f"low{number}"] = word
            values[f"high{number}"] = word + _LAST_CHARACTER
        rows = await self._database.scan(_search_sql(len(query), only_shared=only_shared), **values)
        return [_ability_from_row(row) for row in rows]

    async def remove(self, ability_id: str, owner_id: str) -> bool:
        sql = "DELETE FROM abilities WHERE owner_id = :owner_id AND ability_id = :ability_id"
        values = {"owner_id": owner_id, "ability_id": ability_id}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def existing(self, ability_ids: Iterable[str], user_id: str) -> set[str]:
        """Returns those of the given ids under which the user can run an ability."""
        ids = sorted(set(ability_ids))
        if not ids:
            return set()
        sql = f"""
            SELECT ability_id FROM abilities WHERE owner_id = :user_id AND ability_id IN :wanted
            UNION
            SELECT ability_id FROM abilities WHERE shared AND ability_id IN :wanted
            UNION
            SELECT ability_id FROM ({SHARED_WITH_USER}) AS shares WHERE ability_id IN :wanted
        """
        return {row[0] for row in await self._database.read(sql, user_id=user_id, wanted=ids)}

    async def versions(self, ability_id: str, owner_id: str) -> builtins.list[Ability]:
        """Lists all versions, newest first."""
        sql = f"""
            SELECT {_NAMES} FROM ability_versions WHERE owner_id = :owner_id AND ability_id = :ability_id
            ORDER BY version DESC
        """
        rows = await self._database.scan(sql, owner_id=owner_id, ability_id=ability_id)
        return [_ability_from_row(row) for row in rows]

    async def version(self, ability_id: str, owner_id: str, version: int) -> Ability | None:
        sql = f"""
            SELECT {_NAMES} FROM ability_versions
            WHERE owner_id = :owner_id AND ability_id = :ability_id AND version = :version
        """
        rows = await self._database.read(sql, owner_id=owner_id, ability_id=ability_id, version=version)
        return _ability_from_row(rows[0]) if rows else None


# --- search ---


def _split_words(text: str) -> list[str]:
    """Returns the distinct words of a text in lower case and in order. Each word is cut to
    `MAX_WORD_CHARS`.
    """
    words: dict[str, None] = {}
    for word in _WORD.findall(text):
        parts = _CAMEL_CASE_BOUNDARY.split(word)
        for part in (word, *parts) if len(parts) > 1 else (word,):
            words[part.casefold()[:MAX_WORD_CHARS]] = None
            if len(words) == MAX_WORDS:
                return list(words)
    return list(words)


def _word_weights(*texts: tuple[str, int]) -> dict[str, int]:
    """Maps every word to the highest weight of the texts that contain it."""
    weights: dict[str, int] = {}
    for text, weight in texts:
        for word in _split_words(text):
            weights[word] = max(weight, weights.get(word, 0))
    return weights


@cache
def _search_sql(count: int, *, only_shared: bool) -> str:
    """Builds the search query.

    The query picks a limited number of candidates per word (highest weight first) and scores only these. So a
    word that all abilities contain costs no more than a rare word.
    """
    numbers = range(count)
    audiences = ("shared",) if only_shared else ("user_id", "shared")
    branches = [
        f"""
            SELECT owner_id, ability_id FROM (
                SELECT owner_id, ability_id FROM ability_words
                WHERE audience = :{audience} AND word >= :low{number} AND word < :high{number}
                ORDER BY word, weight DESC LIMIT {MAX_CANDIDATES}
            ) AS top
        """
        for number in numbers
        for audience in audiences
    ]
    if not only_shared:
        branches += [
            f"""
                SELECT owner_id, ability_id FROM (
                    SELECT ability_words.owner_id, ability_words.ability_id
                    FROM ({_GRANTED}) AS granted JOIN ability_words
                        ON ability_words.owner_id = granted.owner_id
                        AND ability_words.ability_id = granted.ability_id
                    WHERE word >= :low{number} AND word < :high{number}
                    ORDER BY word, weight DESC LIMIT {MAX_CANDIDATES}
                ) AS top
            """
            for number in numbers
        ]
    candidates = " UNION ".join(branches)
    # An exact match counts twice as much as a prefix match.
    return f"""
        WITH query (number, low, high) AS (
            VALUES {", ".join(f"({n}, CAST(:low{n} AS TEXT), CAST(:high{n} AS TEXT))" for n in numbers)}
        ),
        candidates AS ({candidates}),
        hits AS (
            SELECT candidates.owner_id, candidates.ability_id, query.number,
                MAX(CASE WHEN word = query.low THEN 2 * weight ELSE weight END) AS score
            FROM candidates CROSS JOIN query JOIN ability_words
                ON ability_words.owner_id = candidates.owner_id
                AND ability_words.ability_id = candidates.ability_id
                AND word >= query.low AND word < query.high
            GROUP BY candidates.owner_id, candidates.ability_id, query.number
        ),
        best AS (
            SELECT owner_id, ability_id, COUNT(*) AS matched, SUM(score) AS score FROM hits
            GROUP BY owner_id, ability_id
            ORDER BY matched DESC, score DESC, ability_id, owner_id LIMIT :limit
        ),
        sized AS MATERIALIZED (
            SELECT best.*, LENGTH(document) AS size FROM best JOIN abilities
                ON abilities.owner_id = best.owner_id AND abilities.ability_id = best.ability_id
        ),
        ranked AS (
            SELECT owner_id, ability_id, size,
                ROW_NUMBER() OVER ranking AS rank, SUM(size) OVER ranking AS total_size
            FROM sized WINDOW ranking AS (ORDER BY matched DESC, score DESC, ability_id, owner_id)
        )
        SELECT {ABILITY_COLUMNS} FROM ranked JOIN abilities
            ON abilities.owner_id = ranked.owner_id AND abilities.ability_id = ranked.ability_id
        WHERE total_size - size < :max_chars ORDER BY rank
    """


def _word_statements(ability: Ability) -> Iterator[SqlStatement]:
    """Yields statements that insert the words in batches. All batches except the last have the same size, so
    that the database has to cache only a few different statements.
    """
    weights = _word_weights(
        (ability.name, 8), (ability.ability_id, 8), (ability.service_name, 6), (ability.description, 2)
    )
    row = {"owner_id": ability.owner_id, "ability_id": ability.ability_id}
    row["audience"] = SHARED_AUDIENCE if ability.shared else ability.owner_id
    words = sorted(weights.items())
    for start in range(0, len(words), _WORDS_PER_STATEMENT):
        batch = words[start : start + _WORDS_PER_STATEMENT]
        values: dict[str, Any] = dict(row)
        for number, (word, weight) in enumerate(batch):
            values |= {f"word{number}": word, f"weight{number}": weight}
        yield SqlStatement(_insert_words_sql(len(batch)), values)


@cache
def _insert_words_sql(count: int) -> str:
    rows = (f"(:audience, :word{n}, :owner_id, :ability_id, :weight{n})" for n in range(count))
    into = "INSERT INTO ability_words (audience, word, owner_id, ability_id, weight)"
    return f"{into} VALUES {', '.join(rows)}"
