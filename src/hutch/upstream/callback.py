"""Where a browser comes back to after a login: a loopback address that listens for as long as that takes."""

from __future__ import annotations

import asyncio
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

from mcp.shared.auth import AuthorizationCodeResult

from hutch.upstream.failures import Unreachable

PATH = "/callback"
_DONE = "You are logged in. This window can be closed."
_FAILED = "The login was refused. This window can be closed."
_NOT_OURS = "This is not the login that was asked for."


class Callback:
    """Takes one answer that carries the right `state`; all else is turned away and changes nothing."""

    def __init__(self, port: int) -> None:
        """Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[AuthorizationCodeResult] = self._loop.create_future()
        self._state: str | None = None
        # A thread for each connection: browsers open some ahead of need and say nothing on them.
        self._server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"callback": self}))
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="hutch login", daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{PATH}"

    def expect(self, state: str) -> None:
        self._state = state

    async def wait(self, seconds: float) -> AuthorizationCodeResult:
        """Raises Unreachable when the login was refused, or nobody came."""
        try:
            async with asyncio.timeout(seconds):
                return await self._answer
        except TimeoutError:
            raise Unreachable(f"nobody logged in within {seconds:g} s") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.cancel()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, query: str) -> tuple[int, str]:
        """In a thread: what a browser brings back, and the status and text that it is shown."""
        given = {name: values[0] for name, values in parse_qs(query).items()}
        expected = self._state
        if expected is None or not secrets.compare_digest(given.get("state", "").encode(), expected.encode()):
            return 400, _NOT_OURS
        if "code" in given:
            result = AuthorizationCodeResult(code=given["code"], state=expected, iss=given.get("iss"))
            self._loop.call_soon_threadsafe(self._settle, result)
            return 200, _DONE
        words = given.get("error_description") or given.get("error") or "no code came back"
        self._loop.call_soon_threadsafe(self._settle, Unreachable(" ".join(words.split())[:300]))
        return 400, _FAILED

    def _settle(self, result: AuthorizationCodeResult | Unreachable) -> None:
        if self._answer.done():
            return
        if isinstance(result, Unreachable):
            self._answer.set_exception(result)
        else:
            self._answer.set_result(result)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    callback: Callback
    timeout = 10

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        status, text = (404, "Not found.") if parts.path != PATH else self.callback.answer(parts.query)
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        # The code is in the URL.
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nowhere: the code is in the URL."""
