"""The gateway of this process as what scripts can reach."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from hutch.doors.toolscript.gateway import Called, Gateway
from hutch.doors.toolscript.relay import Relay
from hutch.session.host import CallRecord, Calls
from hutch.settings import DEFAULT_PORT


class Here:
    """The gateway of this process. What is asked from a jail does not leave the process."""

    def __init__(self, gateway: Gateway, app: ASGIApp, *, port: int, token: str | None) -> None:
        host = f"127.0.0.1:{port or DEFAULT_PORT}"
        self.url = f"http://{host}"
        self.relay = Relay(app, host=host, token=token)
        self._gateway = gateway

    async def session(self) -> str:
        await self._gateway.catalog()
        return self._gateway.revision

    async def declarations(self) -> str:
        return str(await self._gateway.declarations())

    @contextmanager
    def calls_of(self, run_id: str) -> Iterator[Calls]:
        calls = Calls()

        def note(call: Called) -> None:
            if call.run == run_id:
                calls.add(CallRecord(call.server, call.tool, call.ok, round(call.seconds * 1000, 3)))

        self._gateway.on_call.append(note)
        try:
            yield calls
        finally:
            self._gateway.on_call.remove(note)
