"""Tool search. Ranks tools by the words of their names, servers, descriptions and arguments, with stemming,
synonyms and corrections of misspelt words.
"""

from __future__ import annotations

import heapq
import math
import re
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from rapidfuzz import fuzz, process
from rapidfuzz.distance import OSA

from hutch.protocols.toolscript.gateway.catalog import Catalog, CatalogEntry
from hutch.protocols.toolscript.gateway.search.words import (
    CHANGING_STEMS,
    MAX_TEXT_CHARS,
    STOP_WORDS,
    SYNONYMS,
    WORD,
    indexed_words,
    letters_and_digits,
    plain,
    shared_name_words,
    split_words,
    stem,
)
from hutch.session.json_value import well_formed

MAX_QUERY_CHARS = 1_000
MAX_WORDS = 16
MAX_CORRECTED_WORDS = 4
MAX_CORRECTED_CHARS = 40
MAX_CORRECTIONS = 3
MAX_PREFIX_READINGS = 20
# Number of (tool, word) pairs that a query may examine: 20,000 take about 5 ms. Only long queries in catalogs
# with thousands of tools exceed this limit. The most common words of such a query are ignored.
MAX_EXAMINED_PAIRS = 20_000
MAX_CANDIDATES = 200

# Weight of each indexed field, and the name of the field in reasons. Descriptions are two fields: the first
# sentence and the rest. These weights and those below were tuned with the queries that are marked "tuning" in
# tests/protocols/toolscript/gateway/search/queries.json.
_FIELDS = (
    (1.0, "name"),
    (0.8, "server's name"),
    (0.75, "description"),
    (0.5, "arguments"),
    (0.4, "description"),
)
_NAME = 0

_SYNONYM_WEIGHT = 0.8
_PREFIX_WEIGHT = 0.85
# Weight of the first word of a query, which is often the verb.
_FIRST_WORD_WEIGHT = 1.2
# Weight of query words that no tool contains. It is below 1, so that a query in prose still finds tools.
_UNKNOWN_WORD_WEIGHT = 0.4
# Exponent for the rarity of a word. It is below 1, because a tool that matches one rare word is often worse
# than a tool that matches two common words.
_RARITY_EXPONENT = 0.7
# From 0 to 1. With 0, the strength of a match is absolute. With 1, it is relative to the best match of the
# same word.
_RELATIVE_STRENGTH = 0.5
# From 0 to 1. With 0, the score of a tool is relative to a tool that matches all query words. With 1, it is
# relative to the best tool.
_RELATIVE_SCORE = 0.5
# Share of the score that a tool loses if no word of its name is in the query.
_NAME_COVERAGE_WEIGHT = 0.2
# Weight of tools that change something, if the query does not ask for a change.
_CHANGING_WEIGHT = 0.85
_DEPRECATION_WEIGHT = 0.6

# A word that is longer than this and occurs in a tool is not treated as a prefix of other words.
_MAX_ABBREVIATION_CHARS = 4
_MIN_SIMILARITY = 0.78
_MIN_NAME_SIMILARITY = 0.8
_NAME_SIMILARITY_WEIGHT = 0.95

_IDENTIFIER = re.compile(r"[\w.-]*\w")
# Matches a description that says that the tool is deprecated, but not "Lists deprecated APIs".
_DEPRECATED = re.compile(
    r"\bDEPRECATED\b"
    r"|(?i:^\W*deprecated\b|\b(?:is|are|been|now|and|but) deprecated\b|\bdeprecated\s*[:;,.!)\]])"
)
# Length of the text after the word "deprecated" in which the name of the replacement is expected.
_DEPRECATION_NOTICE_CHARS = 200


class SearchResult(NamedTuple):
    """A tool that matches a query. All scores are from 0 to 1."""

    entry: CatalogEntry
    score: float
    lexical: float
    """Score of the tool's words. 1 means that the tool's name consists of the query's words."""
    name: float
    """Similarity of the tool's name to the whole query."""
    reason: str


class _Reading(NamedTuple):
    """A possible meaning of a query word. `weight` is its certainty."""

    stem: str
    weight: float
    meant: str


class _Match(NamedTuple):
    """The tools that contain a reading in a field."""

    strength: float
    field: int
    reading: _Reading
    rows: array[int]


class _QueryWord(NamedTuple):
    text: str
    matches: list[_Match]
    """Weakest matches first."""
    certainty: float
    """Below 1 if the word may be misspelt."""

    @property
    def pair_count(self) -> int:
        return sum(len(match.rows) for match in self.matches)

    @property
    def is_changing(self) -> bool:
        return stem(self.text) in CHANGING_STEMS or any(
            match.reading.stem in CHANGING_STEMS for match in self.matches
        )


class SearchIndex:
    """Index of a catalog: the tools that contain each stem, by field."""

    def __init__(self, catalog: Catalog) -> None:
        self._entries = list(catalog)
        # Rows of the tools by stem, for each field. If several fields of a tool contain a stem, only the
        # field with the highest weight lists the tool.
        self._postings: list[defaultdict[str, array[int]]] = [defaultdict(_rows) for _ in _FIELDS]
        self._name_lengths: list[int] = []
        self._changing: set[int] = set()
        self._deprecated: set[int] = set()
        self._replacements: dict[int, int] = {}
        rows = {entry.qualified: row for row, entry in enumerate(self._entries)}
        shared = shared_name_words(self._entries)
        stems: dict[str, str] = {}
        for row, entry in enumerate(self._entries):
            fields = indexed_words(entry, shared[entry.server])
            self._name_lengths.append(max(1, len(set(fields[_NAME]) - STOP_WORDS)))
            seen: set[str] = set()
            for postings, words in zip(self._postings, fields, strict=True):
                for word in words:
                    stemmed = stems.get(word) or stems.setdefault(word, stem(word))
                    if stemmed not in seen:
                        seen.add(stemmed)
                        postings[stemmed].append(row)
            if not CHANGING_STEMS.isdisjoint(stems[word] for word in fields[_NAME]):
                self._changing.add(row)
            description = (entry.description or "")[:MAX_TEXT_CHARS]
            if notice := _DEPRECATED.search(description):
                self._deprecated.add(row)
                for name in _IDENTIFIER.findall(description[notice.end() :][:_DEPRECATION_NOTICE_CHARS]):
                    replacement = catalog.by_original_name(entry.server, name)
                    if replacement is not None and replacement is not entry:
                        self._replacements[row] = rows[replacement.qualified]
                        break
        self._vocabulary = sorted(stems)
        self._stems = frozenset(stems.values())
        self._names = [letters_and_digits(entry.tool) for entry in self._entries]
        self._full_names = [letters_and_digits(entry.server + entry.tool) for entry in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    def search(self, query: str, *, limit: int, threshold: float) -> list[SearchResult]:
        """Returns the best matches first. Tools with the same score are sorted by name."""
        query = well_formed(query[:MAX_QUERY_CHARS])
        words = self._query_words(query)
        lexical = self._lexical(words, threshold)
        name_scores = self._like_name(query)
        scores = {
            row: max(lexical.get(row, 0.0), _NAME_SIMILARITY_WEIGHT * name_scores.get(row, 0.0))
            for row in {*lexical, *name_scores}
        }
        for row in self._deprecated.intersection(scores):
            replacement = self._replacements.get(row)
            if replacement is not None and replacement not in self._deprecated:
                scores[replacement] = max(scores.get(replacement, 0.0), scores[row])
            scores[row] *= _DEPRECATION_WEIGHT
        scored = [
            (-score, self._entries[row].qualified, row) for row, score in scores.items() if score >= threshold
        ]
        return [
            SearchResult(
                self._entries[row],
                round(-score, 4),
                round(lexical.get(row, 0.0), 4),
                round(name_scores.get(row, 0.0), 4),
                self._reason(row, words),
            )
            for score, _, row in sorted(scored)[:limit]
        ]

    # --- words ---

    def _query_words(self, query: str) -> list[_QueryWord]:
        texts: list[str] = []
        for whole in WORD.findall(plain(query)):
            # "GitHub" is one word if a tool uses it, otherwise two.
            texts += [whole.lower()] if stem(whole.lower()) in self._stems else split_words(whole)
        texts = list(dict.fromkeys(self._join(texts)))
        words = []
        corrections = 0
        for text in ([text for text in texts if text not in STOP_WORDS] or texts)[:MAX_WORDS]:
            readings = [*self._read(text)]
            certainty = 1.0
            if not readings and 4 <= len(text) <= MAX_CORRECTED_CHARS and corrections < MAX_CORRECTED_WORDS:
                corrections += 1
                readings = [*self._correct(text)]
                certainty = max((reading.weight for reading in readings), default=1.0)
            words.append(_QueryWord(text, self._matches(readings), certainty))
        return words

    def _join(self, words: list[str]) -> Iterator[str]:
        """Joins neighbours that are known as one word: "time zone" becomes "timezone"."""
        position = 0
        while position < len(words):
            length, joined = 1, words[position]
            for more in (3, 2):
                candidate = "".join(words[position : position + more])
                if stem(candidate) in SYNONYMS or stem(candidate) in self._stems:
                    length, joined = more, candidate
                    break
            yield joined
            position += length

    def _read(self, word: str) -> Iterator[_Reading]:
        """Yields the word itself, its synonyms, and words that start with it."""
        stemmed = stem(word)
        known = stemmed in self._stems
        if known:
            yield _Reading(stemmed, 1.0, word)
        for synonym_stem, synonym in SYNONYMS.get(stemmed, {}).items():
            if synonym_stem in self._stems:
                yield _Reading(synonym_stem, _SYNONYM_WEIGHT, synonym)
        if len(word) >= 3 and not (known and len(word) > _MAX_ABBREVIATION_CHARS):
            start = bisect_left(self._vocabulary, word)
            for other in islice(self._vocabulary, start, start + MAX_PREFIX_READINGS):
                if not other.startswith(word):
                    break
                if stem(other) != stemmed:
                    yield _Reading(stem(other), _PREFIX_WEIGHT, other)

    def _correct(self, word: str) -> Iterator[_Reading]:
        # Compare only words with the same first letter. Few people misspell it, and comparing with all words
        # takes ten times as long.
        start = bisect_left(self._vocabulary, word[0])
        end = bisect_left(self._vocabulary, chr(ord(word[0]) + 1))
        for other, similarity, _ in process.extract(
            word,
            self._vocabulary[start:end],
            scorer=OSA.normalized_similarity,
            score_cutoff=_MIN_SIMILARITY,
            limit=MAX_CORRECTIONS,
        ):
            yield _Reading(stem(other), similarity**2, other)

    def _matches(self, readings: list[_Reading]) -> list[_Match]:
        return sorted(
            _Match(reading.weight * weight, field, reading, self._postings[field][reading.stem])
            for reading in readings
            for field, (weight, _) in enumerate(_FIELDS)
            if reading.stem in self._postings[field]
        )

    # --- scores ---

    def _lexical(self, words: list[_QueryWord], threshold: float) -> dict[int, float]:
        """Returns the scores of the tools that contain query words, by row."""
        totals: defaultdict[int, float] = defaultdict(float)
        in_name: Counter[int] = Counter()
        possible = 0.0
        known = 0
        pairs = 0
        # Rare words first, because they distinguish tools best.
        for word in sorted(words, key=lambda word: word.pair_count):
            pairs += word.pair_count
            if not word.matches or (pairs > MAX_EXAMINED_PAIRS and known):
                continue
            strengths: dict[int, float] = {}
            named: set[int] = set()
            for match in word.matches:
                strengths.update(dict.fromkeys(match.rows, match.strength))
                if match.field == _NAME:
                    named.update(match.rows)
            top = max(strengths.values())
            rarity = math.log(1 + len(self) * top / sum(strengths.values())) ** _RARITY_EXPONENT
            if word is words[0]:
                rarity *= _FIRST_WORD_WEIGHT
            factor = rarity * (word.certainty / top) ** _RELATIVE_STRENGTH
            known += 1
            possible += rarity
            for row, strength in strengths.items():
                totals[row] += strength * factor
            in_name.update(named)
        if not totals:
            return {}
        possible *= 1 + _UNKNOWN_WORD_WEIGHT * (len(words) - known) / known
        best = possible ** (1 - _RELATIVE_SCORE) * max(totals.values()) ** _RELATIVE_SCORE
        likely = [row for row, total in totals.items() if total >= threshold * best]
        changes = any(word.is_changing for word in words)
        scores = {}
        for row in heapq.nlargest(MAX_CANDIDATES, likely, key=totals.__getitem__):
            covered = min(1.0, in_name[row] / self._name_lengths[row])
            scores[row] = totals[row] / best * (1 - _NAME_COVERAGE_WEIGHT * (1 - covered))
            if not changes and row in self._changing:
                scores[row] *= _CHANGING_WEIGHT
        return scores

    def _like_name(self, query: str) -> dict[int, float]:
        """Returns the similarity of each tool's whole name to the whole query, by row."""
        wanted = letters_and_digits(query)
        scores: dict[int, float] = {}
        if 3 <= len(wanted) <= 80:
            for names in (self._names, self._full_names):
                for _, score, row in process.extract(
                    wanted, names, scorer=fuzz.ratio, score_cutoff=100 * _MIN_NAME_SIMILARITY, limit=None
                ):
                    scores[row] = max(scores.get(row, 0.0), score / 100)
        return scores

    # --- reasons ---

    def _reason(self, row: int, words: list[_QueryWord]) -> str:
        by_field: dict[str, list[str]] = {}
        missing = []
        for word in words:
            match = next((match for match in reversed(word.matches) if _contains(match.rows, row)), None)
            if match is None:
                missing.append(word.text)
            else:
                is_same = match.reading.weight == 1
                text = word.text if is_same else f"{match.reading.meant} (for {word.text})"
                by_field.setdefault(_FIELDS[match.field][1], []).append(text)
        parts = [f"{', '.join(texts)} in its {field}" for field, texts in by_field.items()]
        if not parts:
            is_replacement = row in self._replacements.values()
            parts = ["it replaces a deprecated tool" if is_replacement else "its name is like the query"]
        elif missing:
            parts.append(f"not {', '.join(missing)}")
        if row in self._deprecated:
            parts.append("deprecated")
        return "; ".join(parts)


def similar_names(wanted: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Suggests existing names that are similar to an unknown name. Ignores case and separators. Fast enough
    for thousands of names.
    """
    matches = process.extract(
        wanted[:MAX_QUERY_CHARS],
        [*known],
        processor=letters_and_digits,
        scorer=fuzz.ratio,
        score_cutoff=60,
        limit=limit,
    )
    # Tools of a server share a prefix, so keep only names that are about as similar as the best one.
    return [name for name, score, _ in matches if score > matches[0][1] - 10]


def _rows() -> array[int]:
    return array("I")


def _contains(rows: array[int], row: int) -> bool:
    position = bisect_left(rows, row)
    return position < len(rows) and rows[position] == row
