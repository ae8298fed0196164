"""The gateway of this process as what scripts can reach."""

from __future__ import annotations

from starlette.types import ASGIApp

from hutch.doors.toolscript.gateway import Gateway
from hutch.doors.toolscript.relay import Relay
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
