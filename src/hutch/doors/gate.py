"""What every door asks before it opens: the Host, the Origin, and the key."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from hutch.session.serving import Serving
from hutch.settings import Settings


class Gate:
    """Keeps out who may not come in, and knows who is inside."""

    def __init__(self, settings: Settings) -> None:
        self._key = settings.api_key
        self._loopback_only = _is_loopback(settings.host)
        self._hosts = {name.lower() for name in settings.allowed_hosts}
        self._origins = set(settings.allowed_origins)
        self._serving: set[Serving] = set()
        self.draining = False

    def refuse(self, connection: HTTPConnection, *, origin: bool) -> Response | None:
        """The answer to who may not come in, or None. `origin`: whether pages of other sites are kept out."""
        if not self._host_allowed(connection.headers.get("host", "")):
            return _refusal(403, "FORBIDDEN", "The Host header names no host of this server; see allowed_hosts")
        if origin and not self._origin_allowed(connection):
            return _refusal(403, "FORBIDDEN", "Pages of this origin may not connect; see allowed_origins")
        if self._key is not None and not self._key_fits(connection.headers.get("authorization", "")):
            return _refusal(401, "UNAUTHORIZED", "Invalid or missing API key")
        if self.draining:
            return _refusal(503, "BUSY", "The server is shutting down")
        return None

    def owner(self, connection: HTTPConnection) -> str:
        """Whose executions these are: the key's, or everybody's where there is none."""
        if self._key is None:
            return "local"
        return "key:" + hashlib.sha256(self._key.encode()).hexdigest()[:16]

    @contextlib.contextmanager
    def serving(self, serving: Serving) -> Iterator[None]:
        self._serving.add(serving)
        try:
            yield
        finally:
            self._serving.discard(serving)

    async def drain(self, seconds: float) -> None:
        """Lets nobody in any more, and waits for those inside to finish."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(each.active for each in self._serving):
                    await asyncio.sleep(0.02)

    def _host_allowed(self, header: str) -> bool:
        """A page that rebinds its name to our address still sends its own name."""
        host = (urlsplit(f"//{header}").hostname or "").lower()
        if host in self._hosts:
            return True
        return _is_loopback(host) if self._loopback_only else not self._hosts

    def _origin_allowed(self, connection: HTTPConnection) -> bool:
        origin = connection.headers.get("origin")
        if origin is None or origin in self._origins:
            return True
        return urlsplit(origin).netloc == connection.headers.get("host", "")

    def _key_fits(self, header: str) -> bool:
        scheme, _, given = header.partition(" ")
        wanted = self._key or ""
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted.encode())


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refusal(status: int, code: str, message: str) -> Response:
    body = {"success": False, "error": {"code": code, "message": message}}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(body, status_code=status, headers=headers)
