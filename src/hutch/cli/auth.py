"""`hutch auth`: a person logs in to an MCP server, and the gateway keeps what that gives."""

from __future__ import annotations

import os
import sys

from hutch import settings as settings_module
from hutch.cli import loop
from hutch.errors import InvalidExecution
from hutch.upstream import config, oauth
from hutch.upstream.entries import ServerConfig
from hutch.vault.tokens import Tokens


def login(server: str) -> int:
    wanted = loop.run(oauth.login(*_named(server), show=_show))
    print(f"hutch: logged in to {server}" if wanted else f"hutch: {server} wants no login", file=sys.stderr)
    return 0


def logout(server: str) -> int:
    forgot = oauth.logout(*_named(server))
    said = f"logged out of {server}" if forgot else f"there was no login to {server}"
    print(f"hutch: {said}", file=sys.stderr)
    return 0


def _named(server: str) -> tuple[ServerConfig, Tokens]:
    """The server of this name, and where what a login gives is kept."""
    settings = settings_module.load()
    servers = config.load(settings.mcp_config or None).servers
    if server not in servers:
        known = ", ".join(sorted(servers)) or "none"
        raise InvalidExecution(
            "SERVER", f"there is no server {server!r} in the configuration; it has {known}"
        )
    return servers[server], Tokens.at(settings.home_path, os.environ)


def _show(url: str) -> None:
    print(f"Open this page to log in:\n  {url}", file=sys.stderr, flush=True)
