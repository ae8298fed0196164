"""`hutch auth`: a person logs in to an MCP server, and the gateway keeps what that gives."""

from __future__ import annotations

import os
import sys

from hutch import settings as settings_module
from hutch.cli import loop
from hutch.errors import InvalidExecution
from hutch.upstream import config, oauth
from hutch.vault.tokens import Tokens


def login(server: str) -> int:
    settings = settings_module.load()
    servers = config.load(settings.mcp_config or None).servers
    if server not in servers:
        known = ", ".join(sorted(servers)) or "none"
        raise InvalidExecution(
            "SERVER", f"there is no server {server!r} in the configuration; it has {known}"
        )
    tokens = Tokens.at(settings.home_path, os.environ)
    wanted = loop.run(oauth.login(servers[server], tokens, show=_show))
    print(f"hutch: logged in to {server}" if wanted else f"hutch: {server} wants no login", file=sys.stderr)
    return 0


def _show(url: str) -> None:
    print(f"Open this page to log in:\n  {url}", file=sys.stderr, flush=True)
