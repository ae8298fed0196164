"""How the registry is reached: npm's configuration, a proxy and certificates, and nothing else of ours."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

logger = logging.getLogger("hutch.npm")

_PREFIX = "npm_config_"
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_LINE = re.compile(r"\s*([^=\s#;\[][^=]*?)\s*=\s*(.*?)\s*")
# Options of npm that the installer wants as variables.
_PROXIES = {"proxy": "HTTP_PROXY", "https-proxy": "HTTPS_PROXY", "noproxy": "NO_PROXY"}
_CERTIFICATES = ("DENO_CERT", "NODE_EXTRA_CA_CERTS")
_SYSTEM_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class Access(msgspec.Struct, frozen=True):
    """What an installer is told. It holds secrets: it is given to no other process, and to no file."""

    npmrc: str
    """npm's configuration as one text, tokens filled in."""
    variables: dict[str, str]
    certificates: tuple[str, ...] = ()
    """Files with authorities to trust beside the system's."""

    def __repr__(self) -> str:
        return "Access(***)"


def access(home: Path, environ: Mapping[str, str] = os.environ) -> Access:
    """Reads the user's .npmrc, then the one in Hutch's home, then the environment: the last one counts."""
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
    if everything := environ.get("ALL_PROXY") or environ.get("all_proxy"):
        variables["ALL_PROXY"] = everything
    for name in _SYSTEM_CERTIFICATES:
        # One that is not there would make every connection fail.
        if path := _readable(name, environ.get(name)):
            variables[name] = path
            if "system" not in variables["DENO_TLS_CA_STORE"]:
                variables["DENO_TLS_CA_STORE"] += ",system"
    given = {name: environ.get(name) for name in _CERTIFICATES} | {"cafile": options.pop("cafile", None)}
    found = (_readable(name, value) for name, value in given.items())
    npmrc = "".join(f"{key}={value}\n" for key, value in options.items())
    return Access(npmrc, variables, tuple(dict.fromkeys(path for path in found if path)))


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
        found = _LINE.fullmatch(line)
        if found is not None:
            # A variable that is not set stays as it stands, as with npm.
            yield found[1], _VARIABLE.sub(lambda name: environ.get(name[1], name[0]), found[2])


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """`npm_config_…` in any case; an empty one counts as not set."""
    for name, value in environ.items():
        if name.lower().startswith(_PREFIX) and value and value.isprintable():
            key = name[len(_PREFIX) :]
            # Scopes and hosts are written as they are; in options, _ stands for -.
            yield (key if key.startswith(("//", "@")) else key.lower().replace("_", "-")), value


def _readable(name: str, path: str | None) -> str | None:
    if not path:
        return None
    if os.access(path, os.R_OK):
        return str(Path(path).absolute())
    logger.warning("%s names %s, which cannot be read", name, path)
    return None
