"""Search over all tools: SQLite's full-text index ranks by BM25, rapidfuzz reads misspelt words."""

from __future__ import annotations

import math
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rapidfuzz import fuzz, process
from rapidfuzz.distance import OSA

from hutch.doors.toolscript.catalog import Catalog, Entry
from hutch.session.jsonvalue import well_formed
from hutch.session.schemas import dict_of

MAX_QUERY = 1_000  # characters
MAX_WORDS = 16
MAX_TEXT = 4_000  # of a description
MAX_READINGS = 3  # of a misspelt word

# What is indexed of a tool, how much a word counts there, and what the place is called.
_FIELDS = {
    "name": (10.0, "name"),
    "server": (4.0, "server's name"),
    "arguments": (2.0, "arguments"),
    "description": (1.5, "description"),
}
_RANK = f"SELECT rowid, -bm25(tools, {', '.join(str(weight) for weight, _ in _FIELDS.values())})"
# BM25 lets no place count for much more than another, but the names do.
_NOT_IN_NAME = 0.6

# How far a word that nobody has counts against the others: asking in prose must not hide everything.
_UNKNOWN_WORD = 0.7
_PREFIX = 0.85
_ABBREVIATION = 4  # letters; a word that is longer, and known, stands for itself
_LEAST_SIMILAR = 0.7
_LEAST_LIKE_NAME = 0.8
_LIKE_NAME = 0.95

_SMALL_WORDS = """
    a all am an and any are as at be by can could do does for from has have how i in into is it its me my of
    on or our please should that the their them then there this to tool tools use using want was we what when
    where which who will with would you your
"""
_STOP_WORDS = frozenset(_SMALL_WORDS.split())

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")


class Found(NamedTuple):
    """A tool that fits a query; all figures are from 0 to 1."""

    entry: Entry
    score: float
    lexical: float
    """How near its words come to the best that any tool has for each word of the query."""
    name: float
    """How like its name the query is as a whole."""
    reason: str


class _Reading(NamedTuple):
    """What a word of the query may mean: words of the index, and how surely."""

    match: str
    weight: float
    meant: str


class _Lexical(NamedTuple):
    scores: dict[int, float]
    """By row."""
    matched: dict[int, dict[str, _Reading]]
    """Of every row, by which reading each word of the query is in it."""


class Index:
    """A catalog, made searchable."""

    def __init__(self, catalog: Catalog) -> None:
        self._entries = list(catalog)
        texts = [_texts(each) for each in self._entries]
        # One thread builds it, another asks; never both at once.
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        fields = ", ".join(_FIELDS)
        self._db.execute(f"CREATE VIRTUAL TABLE tools USING fts5({fields}, tokenize='porter unicode61')")
        self._db.executemany(
            f"INSERT INTO tools (rowid, {fields}) VALUES (?, ?, ?, ?, ?)",
            ((row, *text) for row, text in enumerate(texts)),
        )
        self._vocabulary = sorted({word for text in texts for part in text for word in part.split()})
        self._names = [_squeezed(each.tool) for each in self._entries]
        self._full_names = [_squeezed(each.server + each.tool) for each in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    def search(self, query: str, *, limit: int, threshold: float) -> list[Found]:
        """The best first; of equals, by name."""
        query = well_formed(query[:MAX_QUERY])
        readings = {word: [*self._read(word)] for word in _query_words(query)}
        lexical = self._lexical(readings)
        named = self._like_name(query)
        scored = []
        for row in {*lexical.scores, *named}:
            score = max(lexical.scores.get(row, 0.0), _LIKE_NAME * named.get(row, 0.0))
            if score >= threshold:
                scored.append((-score, self._entries[row].qualified, row))
        return [
            Found(
                self._entries[row],
                round(-score, 4),
                round(lexical.scores.get(row, 0.0), 4),
                round(named.get(row, 0.0), 4),
                self._reason(row, readings, lexical.matched.get(row, {})),
            )
            for score, _, row in sorted(scored)[:limit]
        ]

    # --- words ---

    def _read(self, word: str) -> Iterator[_Reading]:
        """The word itself, in all its forms; words that it begins; and such as it may be a slip for."""
        exact = f'"{word}"'
        known = self._db.execute("SELECT 1 FROM tools WHERE tools MATCH ?", (exact,)).fetchone() is not None
        if known:
            yield _Reading(exact, 1.0, word)
        if len(word) >= 3 and not (known and len(word) > _ABBREVIATION):
            yield _Reading(f'"{word}"*', _PREFIX, word)
        if known or len(word) < 4:
            return
        for other, similarity, _ in process.extract(
            word,
            self._vocabulary,
            scorer=OSA.normalized_similarity,
            score_cutoff=_LEAST_SIMILAR,
            limit=MAX_READINGS,
        ):
            yield _Reading(f'"{other}"', similarity * similarity, other)

    def _lexical(self, readings: dict[str, list[_Reading]]) -> _Lexical:
        totals: defaultdict[int, float] = defaultdict(float)
        matched: defaultdict[int, dict[str, _Reading]] = defaultdict(dict)
        best = 0.0
        known = 0
        for word, ways in readings.items():
            ranks: dict[int, float] = {}
            for way in ways:
                for row, rank in self._ranked(way.match):
                    if rank * way.weight > ranks.get(row, 0.0):
                        ranks[row] = rank * way.weight
                        matched[row][word] = way
            if ranks:
                # BM25's own is nothing at all for what more than half of the tools have.
                rarity = math.log(1 + len(self) / len(ranks))
                known += 1
                best += rarity
                for row, rank in ranks.items():
                    totals[row] += rank * rarity
        best *= 1 + _UNKNOWN_WORD * (len(readings) - known) / max(known, 1)
        return _Lexical({row: total / best for row, total in totals.items()}, matched)

    def _ranked(self, match: str) -> Iterator[tuple[int, float]]:
        """Rows that match, from 0 to 1."""
        rows = self._db.execute(f"{_RANK} FROM tools WHERE tools MATCH ?", (match,)).fetchall()
        if rows:
            names = f"{{name server}} : {match}"
            named = self._db.execute("SELECT rowid FROM tools WHERE tools MATCH ?", (names,))
            in_name = {row for (row,) in named}
            most = max(rank for _, rank in rows)
            for row, rank in rows:
                yield row, rank / most * (1.0 if row in in_name else _NOT_IN_NAME)

    def _like_name(self, query: str) -> dict[int, float]:
        """Rows whose whole name is like the whole query."""
        asked = _squeezed(query)
        found: dict[int, float] = {}
        if 3 <= len(asked) <= 80:
            for names in (self._names, self._full_names):
                for _, score, row in process.extract(
                    asked, names, scorer=fuzz.ratio, score_cutoff=100 * _LEAST_LIKE_NAME, limit=None
                ):
                    found[row] = max(found.get(row, 0.0), score / 100)
        return found

    # --- reasons ---

    def _reason(self, row: int, asked: Iterable[str], matched: dict[str, _Reading]) -> str:
        places: dict[str, list[str]] = {}
        missing = []
        for word in asked:
            way = matched.get(word)
            if way is None:
                missing.append(word)
            else:
                said = word if way.meant == word else f"{way.meant} (for {word})"
                places.setdefault(self._place(row, way.match), []).append(said)
        told = [f"{', '.join(words)} in its {place}" for place, words in places.items()]
        if not told:
            return "its name is like the query"
        return "; ".join([*told, f"not {', '.join(missing)}"] if missing else told)

    def _place(self, row: int, match: str) -> str:
        """The weightiest field that has it."""
        for field, (_, place) in _FIELDS.items():
            asked = (row, f"{field} : {match}")
            if self._db.execute("SELECT 1 FROM tools WHERE rowid = ? AND tools MATCH ?", asked).fetchone():
                return place
        return "description"


def near_names(wanted: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """What somebody may have meant by a name that is nobody's."""
    found = process.extract(
        wanted[:MAX_QUERY], [*known], processor=_squeezed, scorer=fuzz.ratio, score_cutoff=60, limit=limit
    )
    # All tools of a server have their beginning in common: what is not about as near as the best is no help.
    return [name for name, score, _ in found if score > found[0][1] - 10]


def _words(text: str) -> list[str]:
    """`createGitHubIssue_v2` as create, git, hub, issue, v2."""
    return [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))]


def _query_words(query: str) -> list[str]:
    found = list(dict.fromkeys(_words(query)))
    return ([each for each in found if each not in _STOP_WORDS] or found)[:MAX_WORDS]


def _texts(entry: Entry) -> list[str]:
    """What is indexed of a tool, in the order of the fields."""
    description = (entry.description or "")[:MAX_TEXT]
    parts = (entry.tool, entry.server, _arguments(entry.input_schema), description)
    return [" ".join(_indexed(well_formed(part))) for part in parts]


def _indexed(text: str) -> list[str]:
    """Words, and those with capitals inside as a whole too: who asks for github finds GitHub."""
    return _words(text) + [each.lower() for each in _WORD.findall(text) if _CAMEL.search(each)]


def _arguments(schema: Any) -> str:
    properties = dict_of(dict_of(schema).get("properties"))
    told = (f"{name} {_description(each)}" for name, each in list(properties.items())[:100])
    return " ".join(told)[:MAX_TEXT]


def _description(schema: Any) -> str:
    description = dict_of(schema).get("description")
    return description[:200] if isinstance(description, str) else ""


def _squeezed(text: str) -> str:
    return "".join(_WORD.findall(text)).lower()
