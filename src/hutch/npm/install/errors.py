"""Translates failures of the installer into messages that are safe to show, because they do not repeat the
output of the installer.
"""

from __future__ import annotations

import re

from hutch.errors import PackageNotFound, PackageTooLarge
from hutch.npm.install.process import InstallerExit, InstallLimits
from hutch.npm.package_spec import PackageSpec, is_package_name
from hutch.npm.tree import TreeLimit
from hutch.settings import MIB
from hutch.text import printable

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


def explain(spec: PackageSpec, exit_status: InstallerExit, limits: InstallLimits) -> PackageNotFound:
    if exit_status.exceeded is not None:
        return too_large(spec, exit_status.exceeded, limits)
    first, cause = error_lines(exit_status.error_output)
    return _not_found(spec, first) or _install_failed(spec, first, cause)


def error_lines(error_output: str) -> tuple[str, str]:
    """Returns the first line of an error and its first cause, for logs. Later lines come from the registry
    and are omitted.

    Both texts are printable, without passwords, and at most 400 characters long.
    """
    match = _CAUSE.search(error_output)
    first, cause = error_output.partition("\n")[0], match[1] if match else ""
    return _printable_line(first), _printable_line(cause)


def _printable_line(text: str) -> str:
    return _PASSWORD.sub("//***@", printable(text[:400], replacement="?"))


def _not_found(spec: PackageSpec, first: str) -> PackageNotFound | None:
    if match := _MISSING.search(first):
        if match[1] == spec.name:
            return PackageNotFound(f"There is no package {spec.name} in the registry.")
        return PackageNotFound(f"{spec} needs {_safe_name(match[1])}, which is not in the registry.")
    if match := _NO_VERSION.search(first):
        name = match[1] or match[2]
        if name == spec.name:
            return PackageNotFound(f"The package {spec.name} has no version {spec.version}.")
        return PackageNotFound(f"{spec} needs a version of {_safe_name(name)} that is not in the registry.")
    return None


def _install_failed(spec: PackageSpec, first: str, cause: str) -> PackageNotFound:
    subject = match[1] if (match := _CONCERNS.search(first)) else ""
    what = str(spec) if subject in ("", spec.name) else f"{_safe_name(subject)} (which {spec} needs)"
    if status := _STATUS.match(cause):
        return _bad_status(what, int(status[1]))
    for sign, message, retryable in _CAUSES:
        if sign in cause:
            return PackageNotFound(message.format(what=what), retryable=retryable)
    if "parsing version requirement" in first:
        return PackageNotFound(f"{what[:1].upper()}{what[1:]} has a dependency that is not in a registry.")
    if _OUT_OF_REACH.search(cause):
        return PackageNotFound("The package registry cannot be reached at the moment.", retryable=True)
    return PackageNotFound(f"{spec} could not be installed.", retryable=not first)


_CAUSES = (
    ("checksum did not match", "The archive of {what} does not match the registry's checksum.", False),
    ("Could not find npm package tarball", "The registry has no archive of {what}.", False),
    ("was not in output directory", "The archive of {what} has files outside of the package.", False),
    ("outside of npm", "A dependency of {what} is not in a registry.", False),
    ("invalid peer certificate", "The package registry's certificate is not trusted by this server.", False),
    ("certificate", "The package registry's certificate cannot be checked by this server.", False),
    ("Too many redirects", "The package registry's answer for {what} is invalid.", True),
    ("packument", "The package registry's answer for {what} is invalid.", True),
    ("No space left", "This server has too little disk space for {what}.", True),
    ("unexpected end of file", "The archive of {what} is broken.", False),
    ("gzip", "The archive of {what} is broken.", False),
    ("failed to", "The archive of {what} cannot be unpacked.", False),
    ("expected value", "The package registry's answer for {what} is invalid.", True),
)  # fmt: skip


def _bad_status(what: str, status: int) -> PackageNotFound:
    if status in (401, 403):
        return PackageNotFound(f"The package registry refuses {what} to this server ({status}).")
    if status == 429 or status >= 500:
        return PackageNotFound(f"The package registry failed ({status}).", retryable=True)
    return PackageNotFound(f"The package registry did not return {what} ({status}).")


def too_large(spec: PackageSpec | str, exceeded: TreeLimit, limits: InstallLimits) -> PackageTooLarge:
    if exceeded == "files":
        excess, setting = f"has more than {limits.max_files} files", "max_package_files"
    else:
        excess, setting = f"is larger than {limits.max_bytes / MIB:g} MiB", "max_package_bytes"
    return PackageTooLarge(
        f"{spec}, with all its dependencies, {excess}; "
        f"the operator can allow more with the setting {setting}.",
        exceeded,
    )


def _safe_name(text: str) -> str:
    """Returns the name of a dependency if it is valid. The name comes from the registry, so an invalid name
    is not repeated.
    """
    return text if is_package_name(text) else "a package"
