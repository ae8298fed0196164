"""The words of a text, to find it by: the same for what is kept and for what is asked."""

from __future__ import annotations

import re

MOST_WORDS = 400
LONGEST = 64

_WORD = re.compile(r"[^\W_]+")
# `getUserByID` is get, user, by, id.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def words(text: str) -> list[str]:
    """Lower case, in order, each once; what is long is cut."""
    found: dict[str, None] = {}
    for whole in _WORD.findall(text):
        parts = _HUMP.split(whole)
        for part in (whole, *parts) if len(parts) > 1 else (whole,):
            found[part.casefold()[:LONGEST]] = None
            if len(found) == MOST_WORDS:
                return list(found)
    return list(found)


def weighed(*texts: tuple[str, int]) -> dict[str, int]:
    """Every word with the greatest weight of a text that it is in."""
    found: dict[str, int] = {}
    for text, weight in texts:
        for word in words(text):
            found[word] = max(weight, found.get(word, 0))
    return found
