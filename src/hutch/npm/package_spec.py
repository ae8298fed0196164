"""Parses npm package specs: a name and a version, range or tag."""

from __future__ import annotations

import re

import msgspec

from hutch.errors import InvalidPackage
from hutch.npm import semver
from hutch.session.json_value import kind_of

LATEST = "latest"
MAX_NAME_LENGTH = 214
MAX_VERSION_LENGTH = 200

# Characters that encodeURIComponent does not escape. New packages may not use capitals or the last six of
# these characters, but old packages do.
_NAME = re.compile(r"[A-Za-z0-9._\-~!*'()]+")
_VERSION = re.compile(r"[A-Za-z0-9._\-+~^<>=|* ]+")
_TAG = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]*")
_EXPECTED = "expected an exact version, a range such as ^1.2, or a tag such as latest"
_RESERVED_NAMES = frozenset({"node_modules", "favicon.ico"})
# Names of Node's built-in modules. Importing such a name never gives the package.
_BUILT_IN = re.compile(
    r"(?:assert|async_hooks|buffer|child_process|cluster|console|constants|crypto|dgram|diagnostics_channel|"
    r"dns|domain|events|fs|http|http2|https|inspector|module|net|os|path|perf_hooks|process|punycode|"
    r"querystring|readline|repl|stream|string_decoder|sys|test|timers|tls|trace_events|tty|url|util|v8|vm|"
    r"wasi|worker_threads|zlib)"
)


class PackageSpec(msgspec.Struct, frozen=True):
    """Requested package. Name and version are valid, and an exact version is in canonical form."""

    name: str
    version: str = LATEST

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def is_exact(self) -> bool:
        return semver.exact_version(self.version) is not None


def parse_spec(name: object, version: object = None) -> PackageSpec:
    """Parses the fields of a request. The default version is `latest`. Raises InvalidPackage with the field
    `packageName` or `version` and the reason.
    """
    return PackageSpec(_parse_name(name), LATEST if version is None else _parse_version(version))


def parse_spec_argument(text: str) -> PackageSpec:
    """Parses a command-line argument: `name` or `@scope/name`, optionally followed by `@version`."""
    at = text.find("@", 1)
    return parse_spec(text) if at < 0 else parse_spec(text[:at], text[at + 1 :])


def is_package_name(text: str) -> bool:
    return _name_problem(text) is None


def _parse_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidPackage("packageName", f"expected a string, got {kind_of(name)}")
    problem = _name_problem(name)
    if problem is None and _BUILT_IN.fullmatch(name):
        problem = f"{name!r} is a built-in module of Node, which hides the package"
    if problem is not None:
        raise InvalidPackage("packageName", problem)
    return name


def _name_problem(name: str) -> str | None:
    if not name:
        return "is empty; expected the name of an npm package"
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name)} characters; the maximum is {MAX_NAME_LENGTH}"
    scope, slash, rest = name.partition("/")
    if slash and not scope.startswith("@"):
        return "is a path, a URL or a repository; expected the name of an npm package"
    for part in (scope.removeprefix("@"), rest) if slash else (name,):
        if not part:
            return "lacks a part; expected @scope/name"
        if not _NAME.fullmatch(part):
            return f"has {_first_invalid_character(part, _NAME)}, which npm does not allow in names"
        if part.startswith("."):
            return "has a part that begins with a dot"
    if name.startswith(("_", "-")):
        return f"begins with {name[0]!r}"
    if ".." in name:
        return "has two dots in a row"
    return f"{name!r} is a reserved name" if name.lower() in _RESERVED_NAMES else None


def _parse_version(version: object) -> str:
    def invalid(why: str) -> InvalidPackage:
        return InvalidPackage("version", f"{why}; {_EXPECTED}")

    if not isinstance(version, str):
        raise invalid(f"is {kind_of(version)}")
    if not version:
        raise invalid("is empty")
    if len(version) > MAX_VERSION_LENGTH:
        raise invalid(f"has {len(version)} characters, more than {MAX_VERSION_LENGTH}")
    if not _VERSION.fullmatch(version):
        raise invalid(
            f"has {_first_invalid_character(version, _VERSION)}; "
            "URLs, repositories, files and aliases are not supported"
        )
    if version != " ".join(version.split()):
        raise invalid("has leading, trailing or repeated spaces")
    exact = semver.exact_version(version)
    if exact is not None:
        return exact
    if semver.parse_range(version) is not None or _TAG.fullmatch(version):
        return version
    raise invalid(f"{version!r} is not a version, range or tag")


def _first_invalid_character(text: str, allowed: re.Pattern[str]) -> str:
    """Returns the first character that is not allowed, escaped if it is not printable ASCII."""
    invalid = next(char for char in text if not allowed.fullmatch(char))
    is_plain = invalid.isascii() and invalid.isprintable()
    return repr(invalid) if is_plain else f"the character U+{ord(invalid):04X}"
