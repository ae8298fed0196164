"""Models for the configuration of MCP servers. Their `repr` contains no secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

HttpProtocol: TypeAlias = Literal["http", "sse", "either"]


INSIDE_VARIABLE = "INSIDE_HUTCH"
"""Environment variable of all stdio servers. `hutch mcp` refuses to start if it is set."""


class StdioConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Server that runs as a child process and is connected through stdin and stdout."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    def __repr__(self) -> str:
        # Arguments and environment variables may contain secrets.
        return f"StdioConfig({self.command!r})"


def starts_hutch(program: StdioConfig) -> bool:
    """Returns True if the program is `hutch mcp`, or starts it, as in `uvx hutch mcp` or
    `python -m hutch mcp`.
    """
    words = (program.command, *program.args)
    names = (PurePath(word).name.partition("@")[0] for word in words)
    return any(name == "hutch" and after == "mcp" for name, after in zip(names, words[1:], strict=False))


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True):
    """Registered OAuth client, for servers without dynamic registration, and the scope to request."""

    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    port: int = 0
    """Port of the loopback redirect URL. With 0, a free port is chosen."""

    def __repr__(self) -> str:
        return f"OAuthClient({self.client_id!r})"


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    headers: dict[str, str] = {}
    protocol: HttpProtocol = "http"
    """Protocol to use. `either` tries streamable HTTP first, then SSE for older servers."""
    oauth: OAuthClient = OAuthClient()

    @property
    def public_url(self) -> str:
        """URL without credentials, query and fragment."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __repr__(self) -> str:
        return f"HttpConfig({self.public_url!r})"


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    transport: StdioConfig | HttpConfig
    include: tuple[str, ...] | None = None
    """Patterns of tool names, with `*` as a wildcard. None includes all tools."""
    exclude: tuple[str, ...] = ()
    connect_seconds: float | None = None
    call_seconds: float | None = None
    problem: str | None = None
    """Reason why the server cannot be used although the file is valid, or None."""

    def includes(self, tool: str) -> bool:
        """Returns True if `include` and `exclude` allow a tool."""
        if self.include is not None and not _matches(tool, self.include):
            return False
        return not _matches(tool, self.exclude)


def _matches(tool: str, patterns: Iterable[str]) -> bool:
    return any(
        tool == pattern or ("*" in pattern and fnmatchcase(tool, _escape_pattern(pattern)))
        for pattern in patterns
    )


def _escape_pattern(pattern: str) -> str:
    return re.sub(r"[\[?]", lambda match: f"[{match[0]}]", pattern)


class McpConfig(msgspec.Struct, frozen=True):
    """All configured servers, in the order of the files."""

    servers: dict[str, ServerConfig] = {}
    files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
