"""Formats text: terminal-safe strings, timestamps, suggestions for misspelled names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice

# Characters that `printable(keep=PROSE)` keeps in program output: line breaks, tabs and the joiners in emoji.
PROSE = "\n\t\u200c\u200d"
# Like PROSE, but without line breaks, for text that must stay on one line.
LINE = "\t\u200c\u200d"

# Unicode category Zs. `str.isprintable` rejects these characters, but terminals show them as spaces.
_SPACES = frozenset(map(chr, (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))
# Longer names and longer lists get no suggestion.
_MAX_NAME_CHARS = 100
_MAX_CANDIDATES = 1_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def printable(text: str, *, keep: str = "", replacement: str | None = None) -> str:
    r"""Returns `text` without characters that a terminal interprets or hides.

    Control characters, line breaks, tabs, direction overrides and other format characters, lone surrogates
    and unassigned characters are replaced by `replacement`. By default, each is replaced by its escape
    (`\u001b`). Characters in `keep` stay.
    """
    if text.isprintable():
        return text
    allowed = _SPACES.union(keep)
    return "".join(
        char
        if char.isprintable() or char in allowed
        else (_escape(char) if replacement is None else replacement)
        for char in text
    )


def columns(text: str) -> int:
    """Returns the number of terminal columns of `text`. A control character counts as one column."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # imported here, because few commands need it

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def has_control_character(text: str) -> bool:
    """Returns True if `text` has C0 or C1 control characters, line separators or lone surrogates."""
    return _CONTROL.search(text) is not None


def is_storable_text(text: str) -> bool:
    """Returns True if `text` has neither NUL characters nor lone surrogates."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def now_rfc3339() -> str:
    """Returns the current time in UTC with milliseconds: `2031-02-03T04:05:06.789Z`."""
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


def format_rfc3339(moment: datetime) -> str:
    """Formats an aware datetime like `now_rfc3339`."""
    return f"{moment.astimezone(UTC).isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


def format_unix_time(seconds: float) -> str:
    """Formats a Unix time like `now_rfc3339`."""
    second, microseconds = divmod(round(seconds * 1e6), 1_000_000)
    return f"{_format_second(second)}.{microseconds // 1_000:03d}Z"


# The texts are cached, because a run record has three times, and most are in the same second.
@lru_cache(maxsize=16)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).replace(tzinfo=None).isoformat()


def cut(text: str, max_chars: int) -> str:
    """Returns the beginning of a long text with an ellipsis."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def cut_middle(text: str, max_chars: int) -> str:
    """Returns the beginning and the end of a long text with an ellipsis between them."""
    if len(text) <= max_chars:
        return text
    tail = max_chars // 3
    return f"{text[: max_chars - tail - 1]}…{text[-tail:]}"


def did_you_mean(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Returns the candidate most similar to a misspelled name, or None if none is similar enough.

    `cutoff` is the minimum similarity: 0 accepts any candidate, 1 accepts only the name itself. Takes at most
    20 ms.
    """
    if not 0 < len(name) <= _MAX_NAME_CHARS:
        return None
    names = list(islice(candidates, _MAX_CANDIDATES + 1))
    if len(names) > _MAX_CANDIDATES:
        return None
    positions: dict[str, int] = {}
    for index, char in enumerate(name):
        positions[char] = positions.get(char, 0) | 1 << index
    best, best_similarity = None, cutoff
    for candidate in names:
        total = len(name) + len(candidate)
        if len(candidate) > _MAX_NAME_CHARS or 2 * min(len(name), len(candidate)) < best_similarity * total:
            continue
        similarity = 2 * _common_length(positions, len(name), candidate) / total
        if similarity > best_similarity or (best is None and similarity == cutoff):
            best, best_similarity = candidate, similarity
    return best


def _common_length(positions: dict[str, int], length: int, other: str) -> int:
    """Returns the length of the longest common subsequence of a name and another text.

    `positions` has a bit set for each place of a character in the name. Each character of the other text
    takes one step (Hyyrö 2004). difflib is not used, because it takes cubic time: 1 000 similar names of 100
    characters took it seconds.
    """
    mask = (1 << length) - 1
    unmatched = mask
    for char in other:
        matches = unmatched & positions.get(char, 0)
        unmatched = ((unmatched + matches) | (unmatched - matches)) & mask
    return length - unmatched.bit_count()
