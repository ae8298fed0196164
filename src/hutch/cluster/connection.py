"""Connection of this process to the NATS servers of its cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from hutch.errors import HutchError, SettingError
from hutch.settings import Settings

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

logger = logging.getLogger("hutch.cluster")

CONNECT_SECONDS = 10.0
"""Time for which a starting process tries to reach NATS."""
RECONNECT_SECONDS = 0.1
CONNECT_TIMEOUT_SECONDS = 3
# Time limit of the first attempt to reconnect. It is short, because an attempt that begins while the link is
# cut is lost. Each further attempt has twice the time, up to CONNECT_TIMEOUT_SECONDS.
RECONNECT_TIMEOUT_SECONDS = 1.0
# Connects again if the server's machine has acknowledged nothing for this time. TCP would send again after
# longer and longer intervals, so that a link that was cut for 2 s would be silent for more than 3 s.
MAX_UNACKNOWLEDGED_MS = 1000
# A link that is cut is detected only while something is sent. So pings are sent at this interval.
PING_SECONDS = 0.25
# Connects again after this number of unanswered pings. Needed if the server's machine still acknowledges
# packets, but the server does not answer.
MAX_PINGS = 24
DISCARD_SECONDS = 0.2


class ClusterUnavailable(HutchError):
    """The NATS servers of the cluster cannot be reached."""

    code = "cluster_unavailable"


class ClusterConnection:
    """Publishes and subscribes. While NATS is unreachable, messages are dropped. This loses nothing, because
    links send unacknowledged packets again.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._outgoing: deque[tuple[str, bytes]] = deque()
        self._wake_up = asyncio.Event()
        self._sending = asyncio.create_task(self._send())
        self._away_since: float | None = None
        self._is_closing = False
        self.on_reconnect: list[Callable[[], None]] = []
        self._set_timeouts()

    @classmethod
    async def open(cls, settings: Settings, name: str) -> Self:
        """Connects. Raises ClusterUnavailable, or SettingError if a setting is wrong."""
        from nats.aio.client import Client
        from nats.errors import Error as NatsError
        from nats.errors import NoServersError

        options = _options(settings)
        connection: list[Self] = []
        last_error: list[Exception] = []

        async def on_error(error: Exception) -> None:
            last_error[:] = [error]
            logger.debug("NATS: %s", error)
            if connection:
                connection[0]._extend_timeout()

        async def on_disconnect() -> None:
            if connection:
                connection[0]._disconnected()

        async def on_reconnect() -> None:
            if connection:
                connection[0]._reconnected()

        deadline = monotonic() + CONNECT_SECONDS
        while True:
            client = Client()
            try:
                await client.connect(
                    servers=servers_of(settings),
                    name=name,
                    error_cb=on_error,
                    disconnected_cb=on_disconnect,
                    reconnected_cb=on_reconnect,
                    connect_timeout=CONNECT_TIMEOUT_SECONDS,
                    reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type]
                    max_reconnect_attempts=1,
                    ping_interval=PING_SECONDS,  # type: ignore[arg-type]
                    max_outstanding_pings=MAX_PINGS,
                    allow_reconnect=False,
                    **options,
                )
                # Allow reconnecting only now. If these options were set earlier, the first attempt to connect
                # would never give up.
                client.options |= {"allow_reconnect": True, "max_reconnect_attempts": -1}
                break
            except (NatsError, OSError, TimeoutError, ssl.SSLError) as error:
                await _discard(client)
                reason = last_error[0] if last_error and isinstance(error, NoServersError) else error
                if _is_refusal(reason):
                    raise ClusterUnavailable(
                        f"NATS at {_shown(settings)} refused this machine: {_text(reason)}.",
                        remedy="Check cluster_user and cluster_password, or the nkey or credentials file.",
                    ) from None
                if monotonic() > deadline:
                    raise ClusterUnavailable(
                        f"NATS at {_shown(settings)} cannot be reached: {_text(reason)}.",
                        remedy="Start nats-server there, or correct the setting cluster_url.",
                    ) from None
                await asyncio.sleep(RECONNECT_SECONDS * 2)
        connection.append(cls(client))
        return connection[0]

    @property
    def max_payload(self) -> int:
        return int(self._client.max_payload)

    @property
    def problem(self) -> str | None:
        """Reason why messages cannot be sent at present, or None."""
        if self._away_since is None:
            return None
        return f"NATS has been unreachable for {monotonic() - self._away_since:.0f} s"

    def publish(self, subject: str, payload: bytes) -> None:
        if self._away_since is None:
            self._outgoing.append((subject, payload))
            self._wake_up.set()

    async def subscribe(self, subject: str, handle: Callable[[bytes], None]) -> None:
        async def on_message(message: Msg) -> None:
            try:
                handle(message.data)
            except Exception:
                logger.exception("a message on %s could not be handled", subject)

        await self._client.subscribe(subject, cb=on_message)
        await self._client.flush()

    async def close(self) -> None:
        """Sends the queued messages, and disconnects."""
        self._is_closing = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                self._wake_up.set()
                await self._sending
                await self._client.flush()
        self._sending.cancel()
        await asyncio.wait([self._sending])
        with contextlib.suppress(Exception):
            await self._client.close()

    async def _send(self) -> None:
        from nats.errors import Error as NatsError

        while not self._is_closing or self._outgoing:
            await self._wake_up.wait()
            self._wake_up.clear()
            while self._outgoing:
                subject, payload = self._outgoing.popleft()
                try:
                    await self._client.publish(subject, payload)
                except (NatsError, OSError) as error:
                    logger.debug("a message was not sent: %s", error)

    def _set_timeouts(self) -> None:
        """Sets the timeouts of a new connection, and of the next attempt to reconnect."""
        self._client.options["connect_timeout"] = RECONNECT_TIMEOUT_SECONDS
        writer: asyncio.StreamWriter | None = getattr(self._client._transport, "_bare_io_writer", None)
        if writer is None or writer.is_closing():
            return
        # uvloop's own socket object has only a part of the methods. The connection may be lost meanwhile.
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as copy,
        ):
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, MAX_UNACKNOWLEDGED_MS)

    def _extend_timeout(self) -> None:
        timeout = self._client.options["connect_timeout"]
        self._client.options["connect_timeout"] = min(CONNECT_TIMEOUT_SECONDS, timeout * 2)

    def _disconnected(self) -> None:
        if self._away_since is None and not self._is_closing:
            logger.warning("the connection to NATS is lost")
            self._away_since = monotonic()
        self._outgoing.clear()

    def _reconnected(self) -> None:
        logger.warning("the connection to NATS is back")
        self._away_since = None
        self._set_timeouts()
        for action in self.on_reconnect:
            action()


async def _discard(client: Client) -> None:
    """Closes the sockets of a client that could not sign in. The client's own `close` would leave them open,
    or wait for the server.
    """
    with contextlib.suppress(Exception):
        async with asyncio.timeout(DISCARD_SECONDS):
            await client.close()
    for name in ("_io_writer", "_bare_io_writer"):
        writer: asyncio.StreamWriter | None = getattr(client._transport, name, None)
        if writer is not None:
            writer.transport.abort()
    await asyncio.sleep(0)


def servers_of(settings: Settings) -> list[str]:
    return [url.strip() for url in (settings.cluster_url or "").split(",") if url.strip()]


def check_settings(settings: Settings) -> str:
    """Returns the cluster's secret. Raises SettingError if a setting of the cluster is missing or wrong."""
    for url in servers_of(settings):
        if url.partition("://")[0] not in ("nats", "tls", "ws", "wss"):
            raise SettingError("cluster_url: expected nats://HOST:PORT or tls://HOST:PORT.")
    if not settings.cluster_secret:
        raise SettingError(
            "cluster_secret: expected a secret that all machines of the cluster share. "
            "Set HUTCH_CLUSTER_SECRET, for example to the output of `openssl rand -hex 32`."
        )
    if bool(settings.cluster_tls_cert) != bool(settings.cluster_tls_key):
        raise SettingError("cluster_tls_cert and cluster_tls_key: expected both or none.")
    return settings.cluster_secret


def _options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "user": settings.cluster_user,
        "password": settings.cluster_password,
        "nkeys_seed": _file(settings.cluster_nkey_file, "cluster_nkey_file"),
        "user_credentials": _file(settings.cluster_creds_file, "cluster_creds_file"),
    }
    uses_tls = any(url.startswith(("tls://", "wss://")) for url in servers_of(settings))
    if uses_tls or settings.cluster_tls_ca or settings.cluster_tls_cert:
        context = ssl.create_default_context(cafile=_file(settings.cluster_tls_ca, "cluster_tls_ca"))
        if settings.cluster_tls_cert:
            context.load_cert_chain(settings.cluster_tls_cert, settings.cluster_tls_key)
        options["tls"] = context
    return {name: value for name, value in options.items() if value is not None}


def _file(path: str | None, setting: str) -> str | None:
    if path is not None:
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise SettingError(f"{setting}: {path} cannot be read: {error.strerror}.") from None
    return path


def _is_refusal(error: Exception) -> bool:
    return "authorization" in str(error).lower() or "authentication" in str(error).lower()


def _text(error: Exception) -> str:
    return str(error).strip(" '.") or type(error).__name__


def _shown(settings: Settings) -> str:
    """Returns the addresses of the servers without credentials."""
    return ", ".join(url.partition("://")[2].rpartition("@")[2] for url in servers_of(settings))
