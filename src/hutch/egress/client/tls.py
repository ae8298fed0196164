"""Starts TLS on a connection, and limits the TLS data that a server sends in addition to its responses."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

from hutch.egress.client.connection import ClientConnection
from hutch.egress.client.models import FetchError

# Maximum number of bytes that a server may send without response data, for example in the handshake, session
# tickets and key updates. OpenSSL accepts certificates of up to 100 KiB.
MAX_OVERHEAD_BYTES = 256 * 1024
# Maximum sizes of one read, before and after the handshake. Without these limits, the event loop would read
# up to 256 KiB at once. OpenSSL needs up to 60 ms for that much if it consists of empty handshake messages.
HANDSHAKE_READ_BYTES = 4 * 1024
READ_BYTES = 16 * 1024


async def start_tls(
    transport: asyncio.Transport, connection: ClientConnection, context: ssl.SSLContext, host: str
) -> None:
    """Switches a connected transport to TLS and makes `connection` its protocol. Until then, the protocol of
    the transport must be a WaitingProtocol. Raises FetchError, SSLError and OSError.
    """
    waiting = cast(WaitingProtocol, transport.get_protocol())
    limiter = TlsInputLimiter(transport, host)
    loop = asyncio.get_running_loop()
    handshake = asyncio.ensure_future(
        loop.start_tls(transport, connection, context, server_hostname=host.strip("[]"))
    )
    try:
        # Wait one iteration of the event loop. Then the transport has the protocol that decrypts, but has not
        # read any data that would bypass the limiter.
        await asyncio.sleep(0)
        if waiting.has_early_data:
            raise FetchError("tls", f"TLS with {host} failed: it sent data before the handshake.")
        limiter.insert()
        secured = await handshake
        if secured is None or limiter.is_exceeded:
            raise ConnectionResetError
    except BaseException as error:
        handshake.cancel()
        transport.abort()
        if isinstance(error, OSError) and limiter.is_exceeded:
            raise limiter.error() from None
        raise
    connection.connection_made(secured)
    connection.on_data = limiter.on_data


class WaitingProtocol(asyncio.Protocol):
    """Protocol of a connection until TLS is started. A TLS server sends nothing before the client does."""

    has_early_data = False

    def data_received(self, data: bytes) -> None:
        self.has_early_data = True


class TlsInputLimiter(asyncio.BufferedProtocol):
    """Passes data from a transport to the protocol that decrypts it. Ends the connection if more than
    MAX_OVERHEAD_BYTES arrive without response data.
    """

    def __init__(self, transport: asyncio.Transport, host: str) -> None:
        self.is_exceeded = False
        self._transport = transport
        self._host = host
        self._decrypting: Any = None
        self._read_bytes = HANDSHAKE_READ_BYTES
        self._overhead = 0

    def insert(self) -> None:
        self._decrypting = self._transport.get_protocol()
        self._transport.set_protocol(self)

    def on_data(self) -> None:
        """Called for each decrypted part of a response. Such a part restarts the count of data without a
        response.
        """
        self._overhead = 0
        self._read_bytes = READ_BYTES

    def error(self) -> FetchError:
        what = f"more than {MAX_OVERHEAD_BYTES // 1024} KiB without an answer"
        return FetchError("tls", f"TLS with {self._host} failed: it sent {what}.")

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._decrypting.get_buffer(sizehint)
        return memoryview(buffer)[: self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        self._overhead += nbytes
        if self._overhead > MAX_OVERHEAD_BYTES:
            self.is_exceeded = True
            self._transport.abort()
        else:
            self._decrypting.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        result: bool | None = self._decrypting.eof_received()
        return result

    def connection_lost(self, exc: Exception | None) -> None:
        self._decrypting.connection_lost(exc)

    def pause_writing(self) -> None:
        self._decrypting.pause_writing()

    def resume_writing(self) -> None:
        self._decrypting.resume_writing()
