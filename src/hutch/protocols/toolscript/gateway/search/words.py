"""Words of tools and queries: splitting, stop words, stems and synonyms."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from hutch.protocols.toolscript.gateway.catalog import CatalogEntry
from hutch.protocols.toolscript.gateway.search.synonyms import synonym_groups
from hutch.session.json_value import well_formed
from hutch.session.schema.walk import as_dict

MAX_TEXT_CHARS = 2_000

_SMALL_WORDS = """
    a about all also am an and another any are as at be been being but by can could did do does done
    each every exist for from had has have here how i if in into is it its just let like may me more
    most my need of on one or other our please s should so some somebody someone something such t than
    that the their them then there these they thing things this those to tool tools us use using want
    was we were what when where which who whose why will with would you your
"""
STOP_WORDS = frozenset(_SMALL_WORDS.split())

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"[.!?:](?=\s)|\n\s*\n")


def indexed_words(entry: CatalogEntry, shared: set[str]) -> list[list[str]]:
    """Returns the words of each field of a tool, in the order of the weights of the index.

    `shared` are words that all tools of the server have in their names. These words are indexed as words of
    the server, because they do not distinguish its tools.
    """
    name = _name_words(entry.tool)
    description = plain((entry.description or "")[:MAX_TEXT_CHARS])
    summary, details = _split_summary(description)
    return [
        [word for word in name if word not in shared],
        [*_name_words(entry.server), *shared],
        _prose_words(summary),
        _prose_words(_arguments(entry.input_schema)),
        _prose_words(details),
    ]


def shared_name_words(entries: Iterable[CatalogEntry]) -> dict[str, set[str]]:
    """Returns the words that all tools of a server have in their names, by server."""
    by_server: defaultdict[str, list[set[str]]] = defaultdict(list)
    for entry in entries:
        by_server[entry.server].append(set(_name_words(entry.tool)))
    return {
        server: set.intersection(*names) if len(names) > 1 else set() for server, names in by_server.items()
    }


def _split_summary(description: str) -> tuple[str, str]:
    """Splits a description after its first sentence."""
    description = description.strip()
    end = _SENTENCE_END.search(description)
    return (description[: end.end()], description[end.end() :]) if end else (description, "")


def _name_words(name: str) -> list[str]:
    """Returns the words of a name. Mixed-case words are also indexed as a whole, so that "github" finds
    GitHub.
    """
    name = plain(name[:MAX_TEXT_CHARS])
    return split_words(name) + [word.lower() for word in WORD.findall(name) if _CAMEL.search(word)]


def _prose_words(text: str) -> list[str]:
    """Returns the words of a text. Identifiers are split, but product names are not: a description with
    "GitHub" does not match "git".
    """
    words: list[str] = []
    for word in WORD.findall(text):
        words += [word.lower()] if word.islower() or word[0].isupper() else split_words(word)
    return [word for word in words if word not in STOP_WORDS]


def split_words(text: str) -> list[str]:
    """Splits a text into lower-case words: `createGitHubIssue_v2` into create, git, hub, issue, v2."""
    return [word.lower() for word in WORD.findall(_CAMEL.sub(" ", text))]


def plain(text: str) -> str:
    """Removes accents."""
    text = well_formed(text)
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def _arguments(schema: Any) -> str:
    properties = as_dict(as_dict(schema).get("properties"))
    parts = (f"{name} {_description(schema)}" for name, schema in list(properties.items())[:100])
    return plain(" ".join(parts)[:MAX_TEXT_CHARS])


def _description(schema: Any) -> str:
    description = as_dict(schema).get("description")
    return description[:200] if isinstance(description, str) else ""


def letters_and_digits(text: str) -> str:
    return "".join(WORD.findall(text)).lower()


# --- stems ---

_SIBILANT_PLURAL = re.compile(r"(ss|sh|ch|x|z)es$")
_IRREGULAR = {
    "built": "build", "chose": "choose", "chosen": "choose", "found": "find", "gave": "give", "given": "give",
    "got": "get", "kept": "keep", "made": "make", "people": "person", "ran": "run", "said": "say",
    "sent": "send", "shown": "show", "took": "take", "taken": "take", "told": "tell", "written": "write",
    "wrote": "write",
}  # fmt: skip
_VOWEL = re.compile(r"[aeiouy]")


def stem(word: str) -> str:
    """Removes English endings, so that forms of a word are equal: delete, deletes, deleting, deletion."""
    word = _IRREGULAR.get(word, word)
    if len(word) <= 3 or not word.isascii() or word == "news":
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif _SIBILANT_PLURAL.search(word):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if word.endswith("ment") and len(word) >= 8:
        word = word[:-4]
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= 3 and not word.endswith("eed") and _VOWEL.search(base):
            # Remove a doubled consonant, because "committed" is a form of "commit".
            is_doubled = base[-1] == base[-2] and base[-1] not in "aeiolsz"
            word = base[:-1] if is_doubled else base
            break
    if word.endswith(("sion", "tion")) and len(word) >= 7:
        word = word[:-3]
    if len(word) > 3:
        word = word.removesuffix("e")
    if len(word) >= 7:
        word = word.removesuffix("at")
    return f"{word[:-1]}i" if word.endswith("y") and len(word) > 3 else word


def _synonyms() -> dict[str, dict[str, str]]:
    """Returns the synonyms of each stem, as a mapping from the stem of a synonym to the synonym itself.
    Search results show the synonym as the reason for a match.
    """
    synonyms: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for group in synonym_groups():
        for word in group:
            for other in group:
                if stem(other) != stem(word):
                    synonyms[stem(word)].setdefault(stem(other), other)
    return dict(synonyms)


SYNONYMS = _synonyms()
_CHANGING_WORDS = """
    add append clear create delete destroy drop edit insert merge move patch post push put remember remove
    rename replace reset save send set store update upload write
"""
CHANGING_STEMS = frozenset(map(stem, _CHANGING_WORDS.split()))
