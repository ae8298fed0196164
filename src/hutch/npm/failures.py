"""Why a package cannot be had, in words that are safe to show: what the installer prints is not repeated."""

from __future__ import annotations

import re

from hutch.errors import PackageNotFound
from hutch.npm.command import Bounds, Ended
from hutch.npm.names import PackageSpec, is_name
from hutch.settings import MIB

_PASSWORD = re.compile(r"//[^/@\s]*@")
_CAUSE = re.compile(r"\nCaused by:\n\s+(?:0: )?(.*)")
_MISSING = re.compile(r"npm package '([^'\n]+)' does not exist")
_NO_VERSION = re.compile(
    r"Could not find (?:npm package '([^'\n]+)' matching|dist-tag '[^'\n]*' for npm package '([^'\n]+)')"
)
_CONCERNS = re.compile(r"""(?:caching npm package '|for package "|Error in )(@?[^@'"\n]+)""")
_STATUS = re.compile(r"Bad response: (\d{3})")
_OUT_OF_REACH = re.compile(
    r"error sending request|error decoding response|error reading a body|connection|timed out", re.I
)


def explain(spec: PackageSpec, ended: Ended, bounds: Bounds) -> PackageNotFound:
    """The failure that an installer's end means."""
    if ended.exceeded is not None:
        return too_much(spec, ended.exceeded, bounds)
    first, cause = complaint(ended.said)
    return _missing(spec, first) or _failed(spec, first, cause)


def complaint(said: str) -> tuple[str, str]:
    """What the installer itself said, and why: the first line and its first cause. More is the registry's.

    For a log: on one line, without passwords, and not endless.
    """
    found = _CAUSE.search(said)
    first, cause = said.partition("\n")[0], found[1] if found else ""
    return _plain(first), _plain(cause)


def _plain(text: str) -> str:
    printable = "".join(char if char.isprintable() else "?" for char in text[:400])
    return _PASSWORD.sub("//***@", printable)


def _missing(spec: PackageSpec, first: str) -> PackageNotFound | None:
    if found := _MISSING.search(first):
        if found[1] == spec.name:
            return PackageNotFound(f"There is no package {spec.name} in the registry.")
        return PackageNotFound(f"{spec} needs {_named(found[1])}, which is not in the registry.")
    if found := _NO_VERSION.search(first):
        name = found[1] or found[2]
        if name == spec.name:
            return PackageNotFound(f"The package {spec.name} has no version {spec.version}.")
        return PackageNotFound(f"{spec} needs a version of {_named(name)} that is not in the registry.")
    return None


def _failed(spec: PackageSpec, first: str, cause: str) -> PackageNotFound:
    subject = found[1] if (found := _CONCERNS.search(first)) else ""
    what = str(spec) if subject in ("", spec.name) else f"{_named(subject)} (which {spec} needs)"
    if status := _STATUS.match(cause):
        return _answered(what, int(status[1]))
    for sign, message, retryable in _CAUSES:
        if sign in cause:
            return PackageNotFound(message.format(what=what), retryable=retryable)
    if "parsing version requirement" in first:
        return PackageNotFound(
            f"{what[:1].upper()}{what[1:]} depends on something that is not in a registry."
        )
    if _OUT_OF_REACH.search(cause):
        return PackageNotFound("The package registry cannot be reached at the moment.", retryable=True)
    return PackageNotFound(f"{spec} could not be installed.", retryable=not first)


_CAUSES = (
    ("checksum did not match", "What the registry sent for {what} is not what it promised.", False),
    ("Could not find npm package tarball", "The registry has no archive of {what}.", False),
    ("was not in output directory", "The archive of {what} has files outside of the package.", False),
    ("outside of npm", "A dependency of {what} is not in a registry.", False),
    ("invalid peer certificate", "The package registry's certificate is not trusted by this server.", False),
    ("certificate", "The package registry's certificate cannot be checked by this server.", False),
    ("Too many redirects", "The package registry's answer for {what} makes no sense.", True),
    ("packument", "The package registry's answer for {what} makes no sense.", True),
    ("No space left", "This server has no room for {what}.", True),
    ("unexpected end of file", "The archive of {what} is broken.", False),
    ("gzip", "The archive of {what} is broken.", False),
    ("failed to", "The archive of {what} cannot be unpacked.", False),
    ("expected value", "The package registry's answer for {what} makes no sense.", True),
)  # fmt: skip


def _answered(what: str, status: int) -> PackageNotFound:
    if status in (401, 403):
        return PackageNotFound(f"The package registry refuses {what} to this server ({status}).")
    if status == 429 or status >= 500:
        return PackageNotFound(f"The package registry failed ({status}).", retryable=True)
    return PackageNotFound(f"The package registry does not give {what} ({status}).")


def too_much(spec: PackageSpec, exceeded: str, bounds: Bounds) -> PackageNotFound:
    if exceeded == "files":
        most = f"more than {bounds.files} files"
    else:
        most = f"larger than {bounds.size / MIB:g} MiB"
    verb = "has" if exceeded == "files" else "is"
    return PackageNotFound(f"{spec}, with all that it depends on, {verb} {most}.")


def _named(text: str) -> str:
    """Names of dependencies are the registry's word: repeated only if they are names."""
    return text if is_name(text) else "a package"
