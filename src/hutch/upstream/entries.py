"""What is known of a server before it is spoken with. Nothing secret shows in these when they are printed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

Protocol: TypeAlias = Literal["http", "sse", "either"]


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A server that we start and speak with over its stdin and stdout."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    def __repr__(self) -> str:
        # Arguments and variables may be secrets.
        return f"Program({self.command!r})"


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True):
    """How we are registered where clients cannot register themselves, and what to ask for."""

    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    port: int = 0
    """Of the loopback address that the browser is sent back to; 0 takes a free one."""

    def __repr__(self) -> str:
        return f"OAuthClient({self.client_id!r})"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is elsewhere."""

    url: str
    headers: dict[str, str] = {}
    protocol: Protocol = "http"
    """`either` was not told: streamable HTTP, and SSE where the server knows no other."""
    oauth: OAuthClient = OAuthClient()

    @property
    def shown(self) -> str:
        """The URL without what may be secret in it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __repr__(self) -> str:
        return f"Endpoint({self.shown!r})"


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server of the configuration."""

    name: str
    reach: Program | Endpoint
    include: tuple[str, ...] | None = None
    """Names of tools, `*` standing for anything; None for all."""
    exclude: tuple[str, ...] = ()
    connect_seconds: float | None = None
    call_seconds: float | None = None
    problem: str | None = None
    """Why this server cannot be used as things are, though the file is right."""

    def offers(self, tool: str) -> bool:
        """Whether a tool of the server is to be seen."""
        if self.include is not None and not _matches(tool, self.include):
            return False
        return not _matches(tool, self.exclude)


def _matches(tool: str, patterns: Iterable[str]) -> bool:
    return any(tool == each or ("*" in each and fnmatchcase(tool, _only_stars(each))) for each in patterns)


def _only_stars(pattern: str) -> str:
    return re.sub(r"[\[?]", lambda found: f"[{found[0]}]", pattern)


class Config(msgspec.Struct, frozen=True):
    """All servers, in their order."""

    servers: dict[str, ServerConfig] = {}
    files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
