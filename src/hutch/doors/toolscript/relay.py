"""What a script finds at its gateway's address: the gateway, which is told the run and shown the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hutch.doors.marks import RUN, RUN_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send


class Relay:
    """Where scripts' requests go: to an application of this process, or to a gateway elsewhere.

    By identity: scripts of two relays do not share runners.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str | None = None) -> None:
        """`host` is the name by which the gateway knows itself; `token` is what it asks for."""
        self._app = app
        self._host = host.encode()
        self._token = token

    async def answer(self, run_id: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = [*self._headers(scope["headers"], run_id)]
        await self._app({**scope, "headers": headers, RUN: run_id}, receive, send)

    def _headers(
        self, given: Iterable[tuple[bytes, bytes]], run_id: str | None
    ) -> Iterable[tuple[bytes, bytes]]:
        yield b"host", self._host
        if self._token is not None:
            yield b"authorization", f"Bearer {self._token}".encode()
        if run_id is not None:
            yield RUN_HEADER.encode(), run_id.encode()
        ours = {b"host", b"authorization", b"origin", RUN_HEADER.encode()}
        yield from ((name, value) for name, value in given if name.lower() not in ours)
