"""Versions and ranges as npm has them: read strictly, compared, matched."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

import msgspec

_NUMBER = r"(?:0|[1-9][0-9]{0,15})"
_WORD = r"(?:0|[1-9][0-9]{0,15}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_TAIL = rf"(?:-({_WORD}(?:\.{_WORD})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
_EXACT = re.compile(rf"=?v?({_NUMBER})\.({_NUMBER})\.({_NUMBER}){_TAIL}")
_ANY = rf"(?:[xX*]|{_NUMBER})"
_PARTIAL = rf"v?({_ANY})(?:\.({_ANY})(?:\.({_ANY}){_TAIL})?)?"
_SIMPLE = re.compile(rf"(\^|~>?|>=|<=|>|<|=)? ?{_PARTIAL}(?: |$)")
_HYPHEN = re.compile(rf"{_PARTIAL} - {_PARTIAL}")


class Version(msgspec.Struct, frozen=True):
    """An exact version. What follows a `+` is no part of it: registries leave it out."""

    numbers: tuple[int, int, int]
    prerelease: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = ".".join(map(str, self.numbers))
        return f"{text}-{'.'.join(self.prerelease)}" if self.prerelease else text

    def __lt__(self, other: Version) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[object, ...]:
        # A prerelease comes before its release; in it, numbers come before words.
        words = tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in self.prerelease)
        return (self.numbers, not self.prerelease, words)


ZERO = Version((0, 0, 0))


class _Bound(msgspec.Struct, frozen=True):
    operator: Literal[">=", ">", "<", "<="]
    version: Version

    def admits(self, version: Version) -> bool:
        match self.operator:
            case ">=":
                return not version < self.version
            case ">":
                return self.version < version
            case "<":
                return version < self.version
            case "<=":
                return not self.version < version


_Partial = tuple[int | None, int | None, int | None, tuple[str, ...]]


class Range(msgspec.Struct, frozen=True):
    """What versions will do: those within all bounds of any one of the sets."""

    sets: tuple[tuple[_Bound, ...], ...]

    def matches(self, version: Version) -> bool:
        return any(self._within(bounds, version) for bounds in self.sets)

    @staticmethod
    def _within(bounds: tuple[_Bound, ...], version: Version) -> bool:
        # npm takes a prerelease only where the range names one of the same version.
        named = not version.prerelease or any(
            bound.version.prerelease and bound.version.numbers == version.numbers for bound in bounds
        )
        return named and all(bound.admits(version) for bound in bounds)


def exact(text: str) -> Version | None:
    """The version that a text is, or None if it is none or not only one."""
    found = _EXACT.fullmatch(text)
    if found is None:
        return None
    major, minor, patch, prerelease = found.groups()
    return Version((int(major), int(minor), int(patch)), tuple(prerelease.split(".")) if prerelease else ())


@lru_cache(maxsize=256)
def ranged(text: str) -> Range | None:
    """The range that a text is, or None. Single spaces only."""
    sets = []
    for part in text.split("||"):
        bounds = _bounds(part.strip(" "))
        if bounds is None:
            return None
        sets.append(bounds)
    return Range(tuple(sets))


def _bounds(text: str) -> tuple[_Bound, ...] | None:
    if text == "":
        return ()
    hyphen = _HYPHEN.fullmatch(text)
    if hyphen is not None:
        groups = hyphen.groups()
        return (*_compare(">=", _partial(groups[:4])), *_compare("<=", _partial(groups[4:])))
    bounds: list[_Bound] = []
    place = 0
    while place < len(text):
        simple = _SIMPLE.match(text, place)
        if simple is None:
            return None
        parts = simple.groups()
        bounds += _compare(parts[0] or "=", _partial(parts[1:]))
        place = simple.end()
    return tuple(bounds)


def _partial(groups: tuple[str | None, ...]) -> _Partial:
    """What follows an `x` counts for nothing, as with npm."""
    numbers: list[int | None] = []
    for text in groups[:3]:
        known = text is not None and text not in "xX*" and None not in numbers
        numbers.append(int(text) if known and text else None)
    whole = None not in numbers
    return (
        numbers[0],
        numbers[1],
        numbers[2],
        tuple((groups[3] or "").split(".")) if whole and groups[3] else (),
    )


def _compare(operator: str, partial: _Partial) -> tuple[_Bound, ...]:
    major, minor, patch, prerelease = partial
    if major is None:
        return (_Bound("<", _before((0, 0, 0))),) if operator in "<>" else ()
    low = Version((major, minor or 0, patch or 0), prerelease)
    whole = minor is not None and patch is not None
    match operator:
        case ">=":
            return (_Bound(">=", low),)
        case "<":
            return (_Bound("<", low if whole else _before(low.numbers)),)
        case ">":
            return (_Bound(">", low) if whole else _Bound(">=", Version(_next(partial))),)
        case "<=":
            return (_Bound("<=", low) if whole else _Bound("<", _before(_next(partial))),)
        case "=" if whole:
            return (_Bound(">=", low), _Bound("<=", low))
        case "^":
            end = _next(_leading(partial))
        case _:
            end = _next((major, minor, None, ()))
    return (_Bound(">=", low), _Bound("<", _before(end)))


def _next(partial: _Partial) -> tuple[int, int, int]:
    """The first version after all that begin as this one does."""
    major, minor, patch, _ = partial
    if minor is None:
        return ((major or 0) + 1, 0, 0)
    return (major or 0, minor + 1, 0) if patch is None else (major or 0, minor, patch + 1)


def _leading(partial: _Partial) -> _Partial:
    """What a caret keeps: everything up to the first number that is not 0."""
    major, minor, patch, _ = partial
    if major or minor is None:
        return (major, None, None, ())
    return (major, minor, None, ()) if minor or patch is None else (major, minor, patch, ())


def _before(numbers: tuple[int, int, int]) -> Version:
    """Less than all prereleases of these numbers."""
    return Version(numbers, ("0",))
