"""An MCP server whose authorization server, at the same address, misbehaves as configured by a test."""

from __future__ import annotations

import asyncio
import json
from typing import Any

REGISTERED = {"client_id": "c", "redirect_uris": ["http://127.0.0.1/callback"]}


class HostileOAuth:
    """ASGI application. `answers` maps each path to a status and a body. A body is JSON, bytes, `ENDLESS` or
    `SILENT`.
    """

    ENDLESS = object()
    SILENT = object()

    def __init__(self, url: str, **metadata: Any) -> None:
        self.sent_bytes = 0
        self.requests: list[str] = []
        self.resource_metadata = f"{url}/resource"
        self.content_type = b"application/json"
        self.location = b""
        """Target of redirects."""
        self.answers: dict[str, tuple[int, Any]] = {
            "/resource": (200, {"resource": f"{url}/mcp", "authorization_servers": [url]}),
            "/.well-known/oauth-authorization-server": (
                200,
                {
                    "issuer": url,
                    "authorization_endpoint": f"{url}/authorize",
                    "token_endpoint": f"{url}/token",
                    "registration_endpoint": f"{url}/register",
                    **metadata,
                },
            ),
            "/register": (201, REGISTERED),
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        self.requests.append(path)
        status, body = self.answers.get(path, (401 if path == "/mcp" else 404, b""))
        challenge = f'Bearer resource_metadata="{self.resource_metadata}"'.encode()
        headers = [(b"content-type", self.content_type), (b"www-authenticate", challenge)]
        if 300 <= status < 400:
            headers.append((b"location", self.location))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if body in (self.ENDLESS, self.SILENT):
            await self._send_endlessly(receive, send, b"x" * 65536 if body is self.ENDLESS else b"")
            return
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        await send({"type": "http.response.body", "body": encoded})

    async def _send_endlessly(self, receive: Any, send: Any, part: bytes) -> None:
        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        disconnected = asyncio.ensure_future(wait_for_disconnect())
        while not disconnected.done() and self.sent_bytes < 256 * 1024 * 1024:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self.sent_bytes += len(part)
            await asyncio.sleep(0 if part else 0.01)
        disconnected.cancel()
