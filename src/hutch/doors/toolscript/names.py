"""What servers and tools are called in scripts: camelCase, each name once, none that JavaScript looks up."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

# Of a name in a script; servers may call their tools whatever they like.
MAX_NAME = 100

# What the language looks up on an object by itself: an awaited namespace must not call a tool named `then`.
_WORDS = """
    constructor hasOwnProperty isPrototypeOf propertyIsEnumerable prototype then toJSON toLocaleString
    toString valueOf
"""
_LOOKED_UP = frozenset(_WORDS.split())


class Collision(NamedTuple):
    """Names that would be the same in scripts, and what each became instead."""

    name: str
    became: dict[str, str]


class Naming(NamedTuple):
    """Names in scripts by original name, in order."""

    names: dict[str, str]
    collisions: list[Collision]


def name_all(originals: Iterable[str], nameless: str) -> Naming:
    """Names that do not depend on the originals' order: of those that collide the plainest keeps the name and
    the others get numbers. `nameless` is for who has no letter or digit."""
    wanted = {each: camel_case(each) or nameless for each in originals}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for original, name in wanted.items():
        groups[name].append(original)
    given: dict[str, str] = {}
    for name, group in groups.items():
        group.sort(key=lambda each: _rank(each, name))
        given[group[0]] = name
    # No camelCase name has an underscore inside, so these meet nobody else's.
    for name, group in groups.items():
        for number, original in enumerate(group[1:], 2):
            given[original] = f"{name.rstrip('_')}_{number}"
    collisions = [
        Collision(name, {each: given[each] for each in group})
        for name, group in groups.items()
        if len(group) > 1
    ]
    return Naming({each: given[each] for each in wanted}, collisions)


def camel_case(original: str) -> str:
    """`create_issue` and `create-issue` are `createIssue`; `getUserName` stays. Empty if nothing is left."""
    words = _words(original)
    if not words:
        return ""
    if not any(each.islower() for word in words for each in word):
        words = [word.lower() for word in words]
    first = _lower_start(words[0])
    name = (first + "".join(word[0].upper() + word[1:] for word in words[1:]))[:MAX_NAME]
    if not _is_identifier(name):
        name = f"_{name}"
    return f"{name}_" if name in _LOOKED_UP else name


def _words(original: str) -> list[str]:
    text = unicodedata.normalize("NFC", original[: 2 * MAX_NAME])
    # Only letters, digits, $ and marks on letters can be in a name.
    kept = "".join(each if each != "_" and _is_identifier(f"_{each}") else " " for each in text)
    return kept.split()


def _lower_start(word: str) -> str:
    """`GetUser` to `getUser`, `HTTPGet` to `httpGet`, `ID` to `id`."""
    capitals = next((index for index, each in enumerate(word) if not each.isupper()), len(word))
    if 1 < capitals < len(word) and word[capitals].islower():
        capitals -= 1
    return word[:capitals].lower() + word[capitals:]


def _is_identifier(text: str) -> bool:
    """Python's rule is JavaScript's but for the dollar."""
    return text.replace("$", "_").isidentifier()


def _rank(original: str, name: str) -> tuple[bool, bool, str]:
    plain = original.isascii() and original.replace("_", "a").isalnum()
    return original != name, not plain, original
