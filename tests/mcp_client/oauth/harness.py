"""A server behind OAuth, and the browser of a user who consents."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.mcp_client.conftest import http_server
from tests.support.mcp_servers.asgi_server import AsgiServer
from tests.support.mcp_servers.oauth_server import Accounts

from hutch.mcp_client.oauth.login import login
from hutch.vault.tokens import Tokens


class OAuthHarness:
    """An MCP server behind OAuth, its accounts, and the client's token storage."""

    def __init__(self, served: AsgiServer, accounts: Accounts, home: Path) -> None:
        self.accounts = accounts
        self.served = served
        self.home = home
        self.tokens = Tokens.at(home, {})
        self.config = http_server("guarded", f"{served.url}/mcp")
        self.shown_urls: list[str] = []

    async def login(self, **options: Any) -> bool:
        chosen = {"open_browser": browse, "seconds": 20, **options}
        return await login(
            chosen.pop("config", self.config), self.tokens, show=self.shown_urls.append, **chosen
        )


def browse(url: str) -> bool:
    """Opens a URL as the browser of a user who consents at once. The last page may be an error page."""
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(url, timeout=20) as response:
        response.read()
    return True
