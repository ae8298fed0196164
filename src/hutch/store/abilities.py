"""Abilities: each owner's, all their versions, and those that are shared with everybody."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec

from hutch.errors import Taken
from hutch.store.database import Database, Statement, Values
from hutch.store.rows import Ability
from hutch.store.words import weighed, words

EVERYBODY = "*"
MOST_LISTED = 100_000
MOST_FOUND = 100
MOST_AT_ONCE = 50
"""Abilities that a page reads in one go: they come with all their code."""
MOST_PAGE_CHARS = 8 * 1024 * 1024
"""Of their code and all else, in a page or in what a search finds; the one that is too much comes along."""
MOST_ASKED = 8
"""Words of a search that count."""
MOST_CANDIDATES = 100
"""Abilities that are looked at for each of them, however many have it."""
_WORDS_AT_ONCE = 64

_FIELDS = tuple(Ability.__struct_fields__)
COLUMNS = ", ".join(f"abilities.{name}" for name in _FIELDS)
_NAMES = ", ".join(_FIELDS)
_HIGH = "\U0010ffff"


def ability(row: Values) -> Ability:
    values = dict(zip(_FIELDS, row, strict=True))
    # SQLite has no booleans.
    values["shared"] = bool(values["shared"])
    values["requires_dynamic_headers"] = bool(values["requires_dynamic_headers"])
    return Ability(**values)


class Abilities:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, ability: Ability) -> int:
        """Keeps it as its owner's newest version, whose number this gives. Older ones stay.

        Raises Taken if it is to be shared and somebody else's of that id is.
        """
        upsert = f"""
            INSERT INTO abilities ({_NAMES}) VALUES ({", ".join(f":{name}" for name in _FIELDS)})
            ON CONFLICT (owner_id, ability_id) DO UPDATE SET
                version = abilities.version + 1,
                {", ".join(f"{name} = excluded.{name}" for name in _FIELDS if name not in _KEPT)}
            RETURNING version
        """
        keep = f"""
            INSERT INTO ability_versions ({_NAMES})
            SELECT {_NAMES} FROM abilities WHERE owner_id = :owner_id AND ability_id = :ability_id
        """
        forget = "DELETE FROM ability_words WHERE owner_id = :owner_id AND ability_id = :ability_id"
        who = {"owner_id": ability.owner_id, "ability_id": ability.ability_id}
        values = {**msgspec.structs.asdict(ability), "version": 1}
        try:
            changed = await self._database.write(
                Statement(upsert, values), Statement(keep, who), Statement(forget, who), *_index(ability)
            )
        except Taken:
            raise Taken(f"An ability {ability.ability_id!r} is shared by somebody else already.") from None
        return int(changed[0].rows[0][0])

    async def get(self, ability_id: str, user_id: str) -> Ability | None:
        """The user's own, or else one that is shared; None also for what is another's."""
        sql = f"""
            SELECT {COLUMNS} FROM abilities WHERE ability_id = :ability_id AND owner_id = :user_id
            UNION ALL
            SELECT {COLUMNS} FROM abilities WHERE ability_id = :ability_id AND shared AND owner_id <> :user_id
        """
        found = [
            ability(row) for row in await self._database.read(sql, ability_id=ability_id, user_id=user_id)
        ]
        return min(found, key=lambda each: each.owner_id != user_id, default=None)

    async def list(
        self, user_id: str, *, shared: bool = False, limit: int = MOST_LISTED, after: str = ""
    ) -> builtins.list[Ability]:
        """The user's own, and those of others that are shared if they are asked for, by id.

        No two have the same id: one's own comes before another's, as in `get`. `after` is the last id that
        was seen.
        """
        which = f"(owner_id = :user_id OR {_SHARED})" if shared else "owner_id = :user_id"
        sql = f"""
            SELECT {COLUMNS} FROM abilities WHERE {which} AND ability_id > :after
            ORDER BY ability_id LIMIT :limit
        """
        most = max(0, min(limit, MOST_LISTED))
        found = await self._database.scan(sql, user_id=user_id, after=after, limit=most)
        return [ability(row) for row in found]

    async def page(
        self, user_id: str, *, shared: bool = False, limit: int, after: str = ""
    ) -> tuple[builtins.list[Ability], bool]:
        """As `list`, but no more than fits into memory; and whether there may be more after the last."""
        page: builtins.list[Ability] = []
        size = 0
        while len(page) < limit and size < MOST_PAGE_CHARS:
            most = min(MOST_AT_ONCE, limit - len(page))
            found = await self.list(user_id, shared=shared, limit=most, after=after)
            page += found
            if len(found) < most:
                return page, False
            size += sum(len(each.document) for each in found)
            after = found[-1].ability_id
        return page, True

    async def search(self, user_id: str, text: str, limit: int = 10) -> builtins.list[Ability]:
        """The user's own and the shared ones with any of these words, or such as begin so; the best first."""
        asked = words(text)[:MOST_ASKED]
        if not asked or limit < 1:
            return []
        values: dict[str, Any] = {"user_id": user_id, "everybody": EVERYBODY}
        values |= {"limit": min(limit, MOST_FOUND), "most": MOST_PAGE_CHARS}
        for number, word in enumerate(asked):
            values[f"low{number}"] = word
            values[f"high{number}"] = word + _HIGH
        found = await self._database.scan(_search(len(asked)), **values)
        return [ability(row) for row in found]

    async def remove(self, ability_id: str, owner_id: str) -> bool:
        """With all its versions."""
        sql = "DELETE FROM abilities WHERE owner_id = :owner_id AND ability_id = :ability_id"
        values = {"owner_id": owner_id, "ability_id": ability_id}
        (changed,) = await self._database.write(Statement(sql, values))
        return changed.touched == 1

    async def existing(self, ability_ids: Iterable[str], user_id: str) -> set[str]:
        """Which of these the user could run."""
        wanted = sorted(set(ability_ids))
        if not wanted:
            return set()
        sql = """
            SELECT ability_id FROM abilities WHERE owner_id = :user_id AND ability_id IN :wanted
            UNION
            SELECT ability_id FROM abilities WHERE shared AND ability_id IN :wanted
        """
        return {row[0] for row in await self._database.read(sql, user_id=user_id, wanted=wanted)}

    async def versions(self, ability_id: str, owner_id: str) -> builtins.list[Ability]:
        """All of them, the newest first."""
        sql = f"""
            SELECT {_NAMES} FROM ability_versions WHERE owner_id = :owner_id AND ability_id = :ability_id
            ORDER BY version DESC
        """
        found = await self._database.scan(sql, owner_id=owner_id, ability_id=ability_id)
        return [ability(row) for row in found]


# By somebody else, and not hidden by one's own.
_SHARED = """shared AND NOT EXISTS (
    SELECT 1 FROM abilities AS own WHERE own.owner_id = :user_id AND own.ability_id = abilities.ability_id
)"""

# What a new version takes over from the one before, or gets from the store.
_KEPT = ("ability_id", "owner_id", "version", "created_at")


@cache
def _search(count: int) -> str:
    """Takes some abilities for each word, those with the word itself in the best place first; weighs them.

    So a word that all abilities have takes no longer than one that few have.
    """
    numbers = range(count)
    candidates = " UNION ".join(
        f"""
            SELECT owner_id, ability_id FROM (
                SELECT owner_id, ability_id FROM ability_words
                WHERE audience = :{audience} AND word >= :low{number} AND word < :high{number}
                ORDER BY word, weight DESC LIMIT {MOST_CANDIDATES}
            ) AS few
        """
        for number in numbers
        for audience in ("user_id", "everybody")
    )
    # The word itself counts twice as much as one that begins so.
    return f"""
        WITH asked (number, low, high) AS (
            VALUES {", ".join(f"({n}, CAST(:low{n} AS TEXT), CAST(:high{n} AS TEXT))" for n in numbers)}
        ),
        candidates AS ({candidates}),
        hits AS (
            SELECT candidates.owner_id, candidates.ability_id, asked.number,
                MAX(CASE WHEN word = asked.low THEN 2 * weight ELSE weight END) AS score
            FROM candidates CROSS JOIN asked JOIN ability_words
                ON ability_words.owner_id = candidates.owner_id
                AND ability_words.ability_id = candidates.ability_id
                AND word >= asked.low AND word < asked.high
            GROUP BY candidates.owner_id, candidates.ability_id, asked.number
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
                ROW_NUMBER() OVER better AS place, SUM(size) OVER better AS up_to_here
            FROM sized WINDOW better AS (ORDER BY matched DESC, score DESC, ability_id, owner_id)
        )
        SELECT {COLUMNS} FROM ranked JOIN abilities
            ON abilities.owner_id = ranked.owner_id AND abilities.ability_id = ranked.ability_id
        WHERE up_to_here - size < :most ORDER BY place
    """


def _index(ability: Ability) -> Iterator[Statement]:
    """Few different texts, whatever the words are: databases keep each that they have read. None for an
    ability without a word."""
    weights = weighed(
        (ability.name, 8), (ability.ability_id, 8), (ability.service_name, 6), (ability.description, 2)
    )
    whose = {"owner_id": ability.owner_id, "ability_id": ability.ability_id}
    whose["audience"] = EVERYBODY if ability.shared else ability.owner_id
    found = sorted(weights.items())
    for start in range(0, len(found), _WORDS_AT_ONCE):
        some = found[start : start + _WORDS_AT_ONCE]
        values: dict[str, Any] = dict(whose)
        for number, (word, weight) in enumerate(some):
            values |= {f"word{number}": word, f"weight{number}": weight}
        yield Statement(_add_words(len(some)), values)


@cache
def _add_words(count: int) -> str:
    rows = (f"(:audience, :word{n}, :owner_id, :ability_id, :weight{n})" for n in range(count))
    into = "INSERT INTO ability_words (audience, word, owner_id, ability_id, weight)"
    return f"{into} VALUES {', '.join(rows)}"
