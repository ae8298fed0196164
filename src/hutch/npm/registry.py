"""Registry configuration (npmrc, proxies, certificates) and the cache of registry metadata."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from hutch.settings import MIB

logger = logging.getLogger("hutch.npm")

_PREFIX = "npm_config_"
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_LINE = re.compile(r"\s*([^=\s#;\[][^=]*?)\s*=\s*(.*?)\s*")
# npm options, and the environment variables from which Deno's installer reads them.
_PROXIES = {"proxy": "HTTP_PROXY", "https-proxy": "HTTPS_PROXY", "noproxy": "NO_PROXY"}
_CERTIFICATES = ("DENO_CERT", "NODE_EXTRA_CA_CERTS")
_SYSTEM_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")

DOCUMENT_FILE = "registry.json"
# Larger documents are not cached. The largest in the npm registry have a few MiB.
MAX_DOCUMENT_BYTES = 64 * MIB


# --- configuration ---


class RegistryConfig(msgspec.Struct, frozen=True):
    """Configuration for the installer. It contains secrets, so no other process gets it and no file contains
    it.
    """

    npmrc: str
    """npm configuration as one text. Variables are replaced, so it contains tokens."""
    variables: dict[str, str]
    certificates: tuple[str, ...] = ()
    """Files with certificate authorities that are trusted in addition to the system's."""

    def __repr__(self) -> str:
        return "Access(***)"


def read_registry_config(home: Path, environ: Mapping[str, str] = os.environ) -> RegistryConfig:
    """Reads the user's .npmrc, then the .npmrc in Hutch's home, then the environment. Later values win."""
    options: dict[str, str] = {}
    for file in (_user_file(environ), home / ".npmrc"):
        if file is not None:
            options.update(_from_file(file, environ))
    options.update(_from_environ(environ))
    variables = {"DENO_TLS_CA_STORE": environ.get("DENO_TLS_CA_STORE") or "mozilla,system"}
    for option, name in _PROXIES.items():
        value = environ.get(name) or environ.get(name.lower()) or options.pop(option, "")
        if value:
            variables[name] = value
    if all_proxy := environ.get("ALL_PROXY") or environ.get("all_proxy"):
        variables["ALL_PROXY"] = all_proxy
    for name in _SYSTEM_CERTIFICATES:
        # Leave out missing files, because every connection of Deno fails if one of these variables names a
        # missing file.
        if path := _readable(name, environ.get(name)):
            variables[name] = path
            if "system" not in variables["DENO_TLS_CA_STORE"]:
                variables["DENO_TLS_CA_STORE"] += ",system"
    certificates = {name: environ.get(name) for name in _CERTIFICATES}
    certificates["cafile"] = options.pop("cafile", None)
    paths = (_readable(name, value) for name, value in certificates.items())
    npmrc = "".join(f"{key}={value}\n" for key, value in options.items())
    return RegistryConfig(npmrc, variables, tuple(dict.fromkeys(path for path in paths if path)))


def _user_file(environ: Mapping[str, str]) -> Path | None:
    for key, value in environ.items():
        if key.lower() == f"{_PREFIX}userconfig" and value:
            return Path(value)
    return Path(environ["HOME"], ".npmrc") if environ.get("HOME") else None


def _from_file(file: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("%s cannot be read: %s", file, error)
        return
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            # If a variable is not set, keep its `${NAME}` as it is, like npm.
            yield match[1], _VARIABLE.sub(lambda name: environ.get(name[1], name[0]), match[2])


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the `npm_config_…` variables, in upper or lower case. Empty values are ignored."""
    for name, value in environ.items():
        if name.lower().startswith(_PREFIX) and value and value.isprintable():
            key = name[len(_PREFIX) :]
            # Keys that start with a scope or host are taken literally. In option names, `_` stands for `-`.
            yield (key if key.startswith(("//", "@")) else key.lower().replace("_", "-")), value


def _readable(name: str, path: str | None) -> str | None:
    if not path:
        return None
    if os.access(path, os.R_OK):
        return str(Path(path).absolute())
    logger.warning("%s names %s, which cannot be read", name, path)
    return None


# --- metadata cache ---


class MetadataCache:
    """Cache of the registry's documents, in the layout of Deno's own cache: a folder per registry, a file per
    package.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def link_into(self, downloads: Path, since: float, without: str | None = None) -> None:
        """Hard-links documents that are newer than `since` into an installer's cache. Leaves out the document
        of the package `without`.
        """
        for name, path in _documents(self._folder):
            target = downloads / path.relative_to(self._folder)
            with contextlib.suppress(OSError):
                if name != without and path.stat().st_mtime >= since:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.link(path, target)

    def save_from(self, downloads: Path) -> None:
        for _, path in _documents(downloads):
            target = self._folder / path.relative_to(downloads)
            new = target.with_name(f"{DOCUMENT_FILE}.{os.getpid()}")
            # Errors are ignored, because the cache is only an optimisation and another process may be pruning
            # it.
            with contextlib.suppress(OSError):
                status = path.stat()
                is_linked = status.st_nlink > 1
                if is_linked or status.st_size > MAX_DOCUMENT_BYTES:
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                new.unlink(missing_ok=True)
                os.link(path, new)
                new.replace(target)

    def remove_older(self, before: float) -> None:
        for _, path in _documents(self._folder):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()


def package_folders(downloads: Path) -> Iterator[tuple[str, Path]]:
    """Yields every package in an installer's cache with the folder that contains its versions."""
    for name, path in _documents(downloads):
        yield name, path.parent


def _documents(folder: Path) -> list[tuple[str, Path]]:
    documents = []
    for path in folder.rglob(DOCUMENT_FILE):
        scope, name = path.parts[-3:-1]
        documents.append((f"{scope}/{name}" if scope.startswith("@") else name, path))
    return documents
