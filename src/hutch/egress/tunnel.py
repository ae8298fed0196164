"""PROXY_URL: connections through the operator's HTTP proxy, by CONNECT to an address that was checked."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from urllib.parse import unquote, urlsplit

from hutch.egress import resolver
from hutch.egress.addresses import Address, read_host
from hutch.egress.connection import Connection
from hutch.egress.fetch import FetchError
from hutch.egress.policy import Policy, Refused
from hutch.egress.resolver import Unreachable
from hutch.egress.urls import PORTS, Url
from hutch.errors import SettingError

MAX_HEAD = 16 * 1024
# More than so many addresses of one name are rarely down together.
MAX_TRIES = 3

_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r)")


class Tunnel:
    """The way through one proxy. Its address is the operator's choice, so no policy is asked about it."""

    def __init__(self, url: str, trust: ssl.SSLContext | None = None) -> None:
        """Raises SettingError, which does not repeat the URL: it may have a password in it."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", PORTS[parts.scheme]
            port = parts.port or port
            where = f"[{host}]" if ":" in host else host
            self._policy = Policy("allowlist", (f"{where}:{port}",))
            self._policy.check_host(read_host(where), port)
        except (ValueError, KeyError, Refused, SettingError):
            expected = "expected http://host:port or https://host:port, with or without user:password@"
            raise SettingError(f"proxy_url: {expected}.") from None
        self._host, self._port = where, port
        self._secure = parts.scheme == "https"
        self._trust = trust
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        self._login = base64.b64encode(login.encode()).decode() if parts.username else None

    def __repr__(self) -> str:
        return f"<Tunnel through {self._host}:{self._port}>"

    async def open(
        self, connection: Connection, addresses: list[Address], url: Url, secure: ssl.SSLContext | None
    ) -> None:
        """To the first of the addresses that the proxy reaches. Raises FetchError, SSLError, OSError."""
        failure: FetchError | None = None
        for address in addresses[:MAX_TRIES]:
            try:
                transport = await self._through(address, url.port)
            except FetchError as error:
                failure = error
                continue
            try:
                await _hand_over(transport, connection, url.host.strip("[]") if secure else None, secure)
            except BaseException:
                transport.abort()
                raise
            return
        raise failure or FetchError("unreachable", f"{url.host} has no address.")

    async def _through(self, address: Address, port: int) -> asyncio.Transport:
        target = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self._login is not None:
            lines.append(f"Proxy-Authorization: Basic {self._login}")
        transport, greeting = await self._connect()
        try:
            transport.write("\r\n".join([*lines, "", ""]).encode())
            heard = await greeting.heard
            found = _STATUS.match(heard)
            # What follows at once would be the proxy's own: nobody has said anything through it yet.
            if found is None or not found[1].startswith(b"2") or not heard.endswith(_END):
                said = found[1].decode() if found else "what is not HTTP"
                raise FetchError("unreachable", f"The operator's proxy did not connect: it answered {said}.")
        except BaseException:
            transport.abort()
            raise
        return transport

    async def _connect(self) -> tuple[asyncio.Transport, _Greeting]:
        try:
            sock = await resolver.connect(self._policy, self._host, self._port)
        except (Refused, Unreachable):
            raise FetchError("unreachable", "The operator's proxy cannot be reached.") from None
        try:
            context = None
            if self._secure:
                context = self._trust = self._trust or await asyncio.to_thread(ssl.create_default_context)
            name = self._host.strip("[]") if context else None
            loop = asyncio.get_running_loop()
            return await loop.create_connection(_Greeting, sock=sock, ssl=context, server_hostname=name)
        except OSError:
            sock.close()
            raise FetchError("tls", "The operator's proxy does not speak TLS as it should.") from None
        except BaseException:
            sock.close()
            raise


class _Greeting(asyncio.Protocol):
    """Hears what a proxy answers, and nothing of what comes through it."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._so_far = b""

    def data_received(self, data: bytes) -> None:
        self._so_far += data
        if len(self._so_far) > MAX_HEAD:
            self.connection_lost(None)
        elif _END in self._so_far and not self.heard.done():
            self.heard.set_result(self._so_far)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.heard.done():
            closed = FetchError("unreachable", "The operator's proxy closed the connection.")
            self.heard.set_exception(closed)
            # Nobody may be waiting any more.
            self.heard.exception()


async def _hand_over(
    transport: asyncio.Transport, connection: Connection, name: str | None, secure: ssl.SSLContext | None
) -> None:
    """From the one who spoke to the proxy to the one who speaks through it."""
    if secure is not None:
        loop = asyncio.get_running_loop()
        inner = await loop.start_tls(transport, connection, secure, server_hostname=name)
        if inner is None:
            raise ConnectionResetError
        connection.connection_made(inner)
        return
    transport.set_protocol(connection)
    connection.connection_made(transport)
