"""Which package: names and versions by npm's own rules, refused before anything is done with them."""

from __future__ import annotations

import re

import msgspec

from hutch.errors import InvalidPackage
from hutch.npm import versions
from hutch.session.jsonvalue import kind_of

LATEST = "latest"
LONGEST_NAME = 214
LONGEST_VERSION = 200

# What encodeURIComponent leaves alone. New packages may not have capitals and the last six: old ones do.
_NAME = re.compile(r"[A-Za-z0-9._\-~!*'()]+")
_VERSION = re.compile(r"[A-Za-z0-9._\-+~^<>=|* ]+")
_TAG = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]*")
_EXPECTED = "expected an exact version, a range such as ^1.2, or a tag such as latest"
_NEVER = frozenset({"node_modules", "favicon.ico"})
# Importing one of these never gives the package of that name.
_BUILT_IN = re.compile(
    r"(?:assert|async_hooks|buffer|child_process|cluster|console|constants|crypto|dgram|diagnostics_channel|"
    r"dns|domain|events|fs|http|http2|https|inspector|module|net|os|path|perf_hooks|process|punycode|"
    r"querystring|readline|repl|stream|string_decoder|sys|test|timers|tls|trace_events|tty|url|util|v8|vm|"
    r"wasi|worker_threads|zlib)"
)


class PackageSpec(msgspec.Struct, frozen=True):
    """A package as it is asked for. Both texts are valid, and the version is in one form only."""

    name: str
    version: str = LATEST

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def is_exact(self) -> bool:
        return versions.exact(self.version) is not None


def parse(name: object, version: object = None) -> PackageSpec:
    """A package by what a request says. Without a version it is the latest.

    Raises InvalidPackage with the field `packageName` or `version`, and why.
    """
    return PackageSpec(_parse_name(name), LATEST if version is None else _parse_version(version))


def parse_argument(text: str) -> PackageSpec:
    """A package as it is typed: `name`, `@scope/name`, either with `@version`."""
    at = text.find("@", 1)
    return parse(text) if at < 0 else parse(text[:at], text[at + 1 :])


def is_name(text: str) -> bool:
    """Whether a registry could have a package of this name."""
    return _fault(text) is None


def _parse_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidPackage("packageName", f"expected a string, got {kind_of(name)}")
    fault = _fault(name)
    if fault is None and _BUILT_IN.fullmatch(name):
        fault = f"{name!r} is one of Node's own modules, which is what importing it would give"
    if fault is not None:
        raise InvalidPackage("packageName", fault)
    return name


def _fault(name: str) -> str | None:
    """What is wrong with a name, if anything."""
    if not name:
        return "is empty; expected the name of an npm package"
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters; npm's longest have {LONGEST_NAME}"
    scope, slash, rest = name.partition("/")
    if slash and not scope.startswith("@"):
        return "is a path, a URL or a repository; expected the name of an npm package"
    for part in (scope.removeprefix("@"), rest) if slash else (name,):
        if not part:
            return "lacks a part; a scoped name is @scope/name"
        if not _NAME.fullmatch(part):
            return f"has {_stranger(part, _NAME)}, which no npm package has in its name"
        if part.startswith("."):
            return "has a part that begins with a dot"
    if name.startswith(("_", "-")):
        return f"begins with {name[0]!r}"
    if ".." in name:
        return "has two dots in a row"
    return f"{name!r} is a name that npm does not give" if name.lower() in _NEVER else None


def _parse_version(version: object) -> str:
    def refuse(why: str) -> InvalidPackage:
        return InvalidPackage("version", f"{why}; {_EXPECTED}")

    if not isinstance(version, str):
        raise refuse(f"is {kind_of(version)}")
    if not version:
        raise refuse("is empty")
    if len(version) > LONGEST_VERSION:
        raise refuse(f"has {len(version)} characters, more than {LONGEST_VERSION}")
    if not _VERSION.fullmatch(version):
        raise refuse(
            f"has {_stranger(version, _VERSION)}; URLs, repositories, files and aliases are not installed"
        )
    if version != " ".join(version.split()):
        raise refuse("has spaces where none belong")
    one = versions.exact(version)
    if one is not None:
        return str(one)
    if versions.ranged(version) is not None or _TAG.fullmatch(version):
        return version
    raise refuse(f"{version!r} is none that npm knows")


def _stranger(text: str, known: re.Pattern[str]) -> str:
    """The first character that does not belong, so that it can be seen whatever it is."""
    found = next(char for char in text if not known.fullmatch(char))
    return repr(found) if found.isascii() and found.isprintable() else f"the character U+{ord(found):04X}"
