"""A Hutch on another machine: executions run there, their tools are called here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from hutch.errors import Busy, HutchError, InvalidExecution, SandboxUnavailable
from hutch.kernel import Result, check_limit
from hutch.sandbox.profile import profile_for
from hutch.session.host import Limits, Outcome, Session
from hutch.session.jsonvalue import encode_value
from hutch.session.link import Link
from hutch.session.providers import Provider, check_providers
from hutch.session.websocket import WebSocketChannel

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from hutch.api import Tools

PATH = "/execbox"
MAX_MESSAGE = 16 * 1024 * 1024
# What an `execute` has beside its code and its tools.
ROOM_FOR_THE_REST = 4096


class Remote:
    """The client's end of the Execbox door, with the API of `hutch.Hutch`; many executions at once.

    It connects when it is first used, and again when the connection was lost.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self._url = _door(url)
        self._api_key = api_key
        self._link: Link | None = None
        self._channel: WebSocketChannel | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

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
        engine: str = "quickjs",
        timeout_ms: float = 5_000,
        memory_limit_bytes: int = 67_108_864,
        max_log_lines: int = 100,
        max_log_chars: int = 64_000,
    ) -> Result:
        """Like `Hutch.run`; the owner is who the server takes us for, and its maximum holds for every limit.

        Raises SandboxUnavailable when the server cannot be reached.
        """
        from hutch.api import check_code, providers_of

        check_code(code)
        providers = providers_of(tools)
        check_providers(providers)
        _check_size(code, providers)
        limits = Limits(
            timeout_ms=check_limit("timeout_ms", timeout_ms),
            memory_limit_bytes=int(check_limit("memory_limit_bytes", memory_limit_bytes)),
            max_log_lines=int(check_limit("max_log_lines", max_log_lines)),
            max_log_chars=int(check_limit("max_log_chars", max_log_chars)),
            engine=profile_for(engine).engine,
        )
        session, outcome = await self._attempt(code, limits, providers)
        if outcome.lost and not session.called_tools:
            # The connection had gone unnoticed, or the server went; nothing has happened yet: once more.
            with contextlib.suppress(SandboxUnavailable):
                session, outcome = await self._attempt(code, limits, providers)
        if outcome.error is not None and outcome.error.retry_after is not None and not session.started:
            raise Busy("The server has no place free.", retry_after=outcome.error.retry_after)
        return Result.of(session.id, outcome)

    async def close(self) -> None:
        """Cancels what runs and closes the connection."""
        self._closed = True
        link, channel, reader = self._link, self._channel, self._reader
        self._link = self._channel = self._reader = None
        if link is None or channel is None or reader is None:
            return
        for session in list(link.sessions.values()):
            session.cancel()
        link.close()
        await channel.finished()
        reader.cancel()
        await asyncio.wait({reader})

    async def _attempt(
        self, code: str, limits: Limits, providers: Sequence[Provider]
    ) -> tuple[Session, Outcome]:
        link = await self._connected()
        session = link.open(uuid4().hex, code, limits, providers)
        try:
            return session, await session.wait()
        except asyncio.CancelledError:
            session.cancel()
            raise
        finally:
            link.forget(session)

    async def _connected(self) -> Link:
        if self._closed:
            raise HutchError("This connection was closed.", remedy="Make another with hutch.connect().")
        async with self._connecting:
            if self._link is None or self._link.closed is not None:
                self._link = await self._connect()
            return self._link

    async def _connect(self) -> Link:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        try:
            socket = await connect(
                self._url, additional_headers=headers, max_size=MAX_MESSAGE, compression=None
            )
        except InvalidStatus as error:
            raise SandboxUnavailable(f"{self._url} {_refusal(error.response.status_code)}") from None
        except (OSError, WebSocketException, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SandboxUnavailable(
                f"{self._url} cannot be reached: {reason}.", remedy="Is `hutch serve` running there?"
            ) from None
        self._channel = _channel(socket)
        self._reader = asyncio.get_running_loop().create_task(_read(socket, self._channel))
        return Link(self._channel, full_manifests=True, trusted=True)


def _door(url: str) -> str:
    """The URL of the Execbox door; a server's URL without a path leads there too."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise InvalidExecution("url", f"expected one such as ws://127.0.0.1:4111{PATH}, got {url!r}")
    if "@" in parts.netloc:
        raise InvalidExecution("url", "expected no user in it; pass the key as `api_key`")
    return urlunsplit(parts if parts.path.strip("/") else parts._replace(path=PATH))


def _check_size(code: str, providers: Sequence[Provider]) -> None:
    """One message too long would end the connection for every other execution on it."""
    most = MAX_MESSAGE - ROOM_FOR_THE_REST
    tools = sum(len(each.manifest_json(full=True)) for each in providers)
    if len(code) * 6 + tools > most and (size := len(encode_value(code)) + tools) > most:
        raise InvalidExecution("code", f"has, with its tools, {size} bytes of JSON; the limit is {most}")


def _refusal(status: int) -> str:
    if status == 401:
        return "refused the connection: the API key is missing or wrong."
    if status == 404:
        return f"is no Execbox door (404): a Hutch server has it at {PATH}."
    return f"refused the connection: it answered {status}."


def _channel(socket: ClientConnection) -> WebSocketChannel:
    from websockets.exceptions import ConnectionClosed

    async def send(text: str) -> None:
        try:
            await socket.send(text)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def close(reason: str) -> None:
        await socket.close(1000, reason)

    return WebSocketChannel(send, close)


async def _read(socket: ClientConnection, channel: WebSocketChannel) -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            channel.feed(await socket.recv())
    except ConnectionClosed as error:
        channel.ended(str(error))
