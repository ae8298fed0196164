"""Connects through the operator's HTTP proxy (PROXY_URL). Sends CONNECT with an address that the policy
permits.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from urllib.parse import unquote, urlsplit

from hutch.egress import resolver
from hutch.egress.addresses import DEFAULT_PORTS, Address, Url, parse_host
from hutch.egress.client.connection import ClientConnection
from hutch.egress.client.models import FetchError
from hutch.egress.client.tls import WaitingProtocol, start_tls
from hutch.egress.policy import EgressPolicy, EgressRefused
from hutch.egress.resolver import HostUnreachable
from hutch.errors import SettingError

MAX_HEAD_BYTES = 16 * 1024
# Maximum number of addresses to try. It is rare that the first three are all down.
MAX_ATTEMPTS = 3

_HEAD_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r)")


class OperatorProxy:
    """HTTP proxy that the operator has configured. The egress policy does not apply to the address of the
    proxy.
    """

    def __init__(self, url: str, trust: ssl.SSLContext | None = None) -> None:
        """Parses the URL. Raises SettingError without repeating the URL, which may contain a password."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", DEFAULT_PORTS[parts.scheme]
            port = parts.port or port
            host_text = f"[{host}]" if ":" in host else host
            self._policy = EgressPolicy("allowlist", (f"{host_text}:{port}",))
            self._policy.check_host(parse_host(host_text), port)
        except (ValueError, KeyError, EgressRefused, SettingError):
            expected = "expected http://host:port or https://host:port, with or without user:password@"
            raise SettingError(f"proxy_url: {expected}.") from None
        self._host, self._port = host_text, port
        self._uses_tls = parts.scheme == "https"
        self._trust = trust
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        self._login = base64.b64encode(login.encode()).decode() if parts.username else None

    def __repr__(self) -> str:
        return f"<OperatorProxy {self._host}:{self._port}>"

    async def connect(
        self, connection: ClientConnection, addresses: list[Address], url: Url, tls: ssl.SSLContext | None
    ) -> None:
        """Connects to the first address that the proxy can reach. Raises FetchError, SSLError and OSError."""
        failure: FetchError | None = None
        for address in addresses[:MAX_ATTEMPTS]:
            try:
                transport = await self._connect_through(address, url.port)
            except FetchError as error:
                failure = error
                continue
            if tls is not None:
                await start_tls(transport, connection, tls, url.host)
            else:
                transport.set_protocol(connection)
                connection.connection_made(transport)
            return
        raise failure or FetchError("unreachable", f"{url.host} has no address.")

    async def _connect_through(self, address: Address, port: int) -> asyncio.Transport:
        target = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self._login is not None:
            lines.append(f"Proxy-Authorization: Basic {self._login}")
        transport, response = await self._connect()
        try:
            transport.write("\r\n".join([*lines, "", ""]).encode())
            head = await response.head
            match = _STATUS.match(head)
            # Refuse data after the head. Nothing was sent through the tunnel yet, so such data would come
            # from the proxy and not from the server.
            if match is None or not match[1].startswith(b"2") or not head.endswith(_HEAD_END):
                answer = match[1].decode() if match else "something that is not HTTP"
                raise FetchError(
                    "unreachable", f"The operator's proxy did not connect: it answered {answer}."
                )
        except BaseException:
            transport.abort()
            raise
        return transport

    async def _connect(self) -> tuple[asyncio.Transport, _ConnectResponse]:
        try:
            sock = await resolver.connect(self._policy, self._host, self._port)
        except (EgressRefused, HostUnreachable):
            raise FetchError("unreachable", "The operator's proxy cannot be reached.") from None
        try:
            context = None
            if self._uses_tls:
                context = self._trust = self._trust or await asyncio.to_thread(ssl.create_default_context)
            name = self._host.strip("[]") if context else None
            loop = asyncio.get_running_loop()
            return await loop.create_connection(
                _ConnectResponse, sock=sock, ssl=context, server_hostname=name
            )
        except OSError:
            sock.close()
            raise FetchError("tls", "The TLS handshake with the operator's proxy failed.") from None
        except BaseException:
            sock.close()
            raise


class _ConnectResponse(WaitingProtocol):
    def __init__(self) -> None:
        self.head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._received = b""

    def data_received(self, data: bytes) -> None:
        if self.head.done():
            self.has_early_data = True
            return
        self._received += data
        if len(self._received) > MAX_HEAD_BYTES:
            self.connection_lost(None)
        elif _HEAD_END in self._received:
            self.head.set_result(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.head.done():
            closed = FetchError("unreachable", "The operator's proxy closed the connection.")
            self.head.set_exception(closed)
            # Mark the exception as retrieved, because the caller may have stopped waiting.
            self.head.exception()
