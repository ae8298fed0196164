"""A Hutch on another machine: executions run there, their tools are called here."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from hutch.errors import SandboxUnavailable
from hutch.session.host import Limits
from hutch.session.link import Link
from hutch.session.websocket import WebSocketChannel

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from hutch.api import Tools
    from hutch.kernel import Result

MAX_MESSAGE = 16 * 1024 * 1024


class Remote:
    """The client's end of the Execbox door, with the API of `hutch.Hutch`; many executions at once."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self._url = url
        self._api_key = api_key
        self._link: Link | None = None
        self._channel: WebSocketChannel | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        code: str,
        *,
        tools: Tools = None,
        engine: str | None = None,
        timeout_ms: float = 5_000,
        memory_limit_bytes: int = 67_108_864,
        max_log_lines: int = 100,
        max_log_chars: int = 64_000,
    ) -> Result:
        """Like `Hutch.run`. Raises SandboxUnavailable when the server cannot be reached."""
        from hutch.api import providers_of
        from hutch.kernel import Result
        from hutch.session.providers import check_providers

        providers = providers_of(tools)
        check_providers(providers)
        limits = Limits(
            timeout_ms=timeout_ms,
            memory_limit_bytes=memory_limit_bytes,
            max_log_lines=max_log_lines,
            max_log_chars=max_log_chars,
            engine=engine,
        )
        link = await self._connected()
        session = link.open(uuid4().hex, code, limits, providers)
        try:
            outcome = await session.wait()
        except asyncio.CancelledError:
            session.cancel()
            raise
        finally:
            link.forget(session)
        return Result.of(session.id, outcome)

    async def close(self) -> None:
        channel, self._channel, self._link = self._channel, None, None
        if channel is not None:
            channel.close()
            await channel.finished()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _connected(self) -> Link:
        async with self._connecting:
            if self._link is None or self._link.closed is not None:
                await self._connect()
            assert self._link is not None
            return self._link

    async def _connect(self) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        try:
            socket = await connect(
                self._url, additional_headers=headers, max_size=MAX_MESSAGE, compression=None
            )
        except InvalidStatus as error:
            status = error.response.status_code
            why = "the API key is missing or wrong" if status == 401 else f"it answered {status}"
            raise SandboxUnavailable(f"{self._url} refused the connection: {why}.") from None
        except (OSError, WebSocketException, ValueError, TimeoutError) as error:
            raise SandboxUnavailable(
                f"{self._url} cannot be reached: {error}.", remedy="Is `hutch serve` running there?"
            ) from None
        self._channel = WebSocketChannel(socket.send, socket.close)
        self._link = Link(self._channel, full_manifests=True)
        self._reader = asyncio.get_running_loop().create_task(_read(socket, self._channel))


async def _read(socket: ClientConnection, channel: WebSocketChannel) -> None:
    from websockets.exceptions import ConnectionClosed

    reason: Any = "the connection closed"
    try:
        async for message in socket:
            channel.feed(message)
    except ConnectionClosed as error:
        reason = error
    channel.ended(str(reason))
