"""Forwards one connection of a guest to a server: a tunnel, or one http:// request and its response."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from hutch.egress.policy import EgressRefused
from hutch.egress.proxy import http1
from hutch.egress.proxy.http1 import BadMessage, BodyFraming, ProxyRequest
from hutch.egress.request_log import OutgoingRequest
from hutch.egress.resolver import HostUnreachable

if TYPE_CHECKING:
    from hutch.egress.proxy.proxy import EgressProxy

HEAD_SECONDS = 30.0
IDLE_SECONDS = 300.0
# Time that a client has to read its response and to close the connection.
LINGER_SECONDS = 10.0

# SO_LINGER on, with 0 s: closing discards unsent data and resets the connection.
_RESET = struct.pack("ii", 1, 0)


class ProxySide(asyncio.Protocol):
    """One side of a forwarded connection. While this side cannot be written to, the other side is not
    read.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: ProxySide | None = None
        self.has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.set_reading(False)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.set_reading(True)

    def set_reading(self, enabled: bool) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading() if enabled else self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def send_eof(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            # The peer may have closed the connection meanwhile.
            with contextlib.suppress(OSError, RuntimeError):
                self.transport.write_eof()

    def abort(self) -> None:
        """Resets the connection, so that the peer does not mistake the end for a regular one."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        # The socket may already be closed although `connection_lost` was not called yet.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class ServerSide(ProxySide):
    def __init__(self, client: GuestSide) -> None:
        super().__init__()
        self.other = self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._client.server_connected(self)

    def data_received(self, data: bytes) -> None:
        self._client.server_data_received(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        self._client.server_ended()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._client.server_lost(exc)


class GuestSide(ProxySide):
    """The guest's side of a connection. Parses the head of the request, connects to the server, then forwards
    all data.
    """

    def __init__(self, proxy: EgressProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._connection_closed: asyncio.Future[None] = self._loop.create_future()
        self._connecting: asyncio.Task[None] | None = None
        self._server: ServerSide | None = None
        self._is_over = False
        # State of the request: its head, data that is not forwarded yet, and the framing of its body (None
        # for a tunnel).
        self._request: ProxyRequest | None = None
        self._entry: OutgoingRequest | None = None
        self._buffered = bytearray()
        self._body: BodyFraming | None = None
        # State of the response: the received part of its head, or None if the head is complete.
        self._response_head: bytearray | None = None
        self._last_activity = self._loop.time()
        self._idle_timeout = HEAD_SECONDS
        self._timer = self._loop.call_later(HEAD_SECONDS, self._check_idle)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.add_client(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._server is not None:
            self._last_activity = self._loop.time()
            self._forward(data)
            return
        seen = len(self._buffered)
        self._buffered += data
        if self._request is None:
            self._read_head(seen)
        elif len(self._buffered) > http1.MAX_HEAD_BYTES:
            self.set_reading(False)

    def _read_head(self, seen: int) -> None:
        end = self._buffered.find(http1.HEAD_END, max(0, seen - len(http1.HEAD_END)))
        if end < 0 and len(self._buffered) <= http1.MAX_HEAD_BYTES:
            return
        if not 0 <= end <= http1.MAX_HEAD_BYTES:
            self._send_error(431, "The request's head is too large.")
            return
        try:
            request = http1.read_request(bytes(self._buffered[:end]))
        except BadMessage as error:
            self._send_error(error.status, f"{error}.")
            return
        del self._buffered[: end + len(http1.HEAD_END)]
        self._request = request
        self._body = request.body
        self._last_activity = self._loop.time()
        self._set_idle_timeout(IDLE_SECONDS)
        if request.is_explanation:
            self._explain(request)
            return
        self._entry = self._proxy.log_request(request)
        self._connecting = self._loop.create_task(self._connect(request), name="hutch-connect")

    def _explain(self, request: ProxyRequest) -> None:
        response = self._proxy.failures.get((request.host, request.port))
        if response is None:
            self._send_error(404, "No tunnel to this host has failed.")
            return
        self.write(response)
        self._finish()

    async def _connect(self, request: ProxyRequest) -> None:
        try:
            sock = await self._proxy.connect(request.host, request.port)
        except EgressRefused as error:
            self._send_error(403, error.message, "EACCES")
        except HostUnreachable as error:
            self._send_error(504 if error.timed_out else 502, error.message, error.error_code)
        else:
            try:
                await self._loop.create_connection(lambda: ServerSide(self), sock=sock)
            except BaseException:
                sock.close()
                raise

    def server_connected(self, server: ServerSide) -> None:
        """Starts forwarding to the server. Called before any data of the server arrives."""
        assert self._request is not None
        self._server = self.other = server
        self._last_activity = self._loop.time()
        if self.transport is None or self.transport.is_closing():
            server.abort()
            return
        if self._request.is_tunnel:
            self.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            self._response_head = bytearray()
            self._count_sent(len(self._request.head))
            server.write(self._request.head)
        data = bytes(self._buffered)
        self._buffered.clear()
        self._forward(data)
        self.set_reading(True)
        if self.has_ended:
            self.eof_received()

    def _forward(self, data: bytes) -> None:
        assert self._server is not None
        if self._body is not None:
            try:
                # Data after the request is dropped, because the connection ends with the response.
                data = data[: self._body.feed(data)]
            except BadMessage:
                # The server has already received part of the request. An error response would wrongly suggest
                # that the request had no effect.
                self.abort_both()
                return
        self._count_sent(len(data))
        self._server.write(data)

    def _count_sent(self, size: int) -> None:
        self._proxy.sent_bytes += size
        if self._entry is not None:
            self._entry.sent_bytes += size

    def eof_received(self) -> bool:
        self.has_ended = True
        if self._is_over or self._request is None:
            self._close()
        elif self._server is None:
            pass  # `server_connected` calls this method again
        elif self._body is None:
            self._server.send_eof()
            self._close_if_both_ended()
        elif self._body.done:
            self._set_idle_timeout(LINGER_SECONDS)
        else:
            self.abort_both()
        return True

    def server_data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._last_activity = self._loop.time()
        self._proxy.received_bytes += len(data)
        if self._entry is not None:
            self._entry.received_bytes += len(data)
        if self._response_head is None:
            self.write(data)
            return
        self._response_head += data
        try:
            self._read_response_head()
        except BadMessage as error:
            reason = f"answered with data that is not HTTP/1.1: {error}"
            self._send_bad_gateway(reason, "HPE_INVALID_CONSTANT")

    def _read_response_head(self) -> None:
        """Forwards response heads up to the final one. Interim heads (100 Continue) may come first."""
        assert self._request is not None
        while self._response_head is not None:
            end = self._response_head.find(http1.HEAD_END)
            if end > http1.MAX_HEAD_BYTES or (end < 0 and len(self._response_head) > http1.MAX_HEAD_BYTES):
                raise BadMessage("the head is too large")
            if end < 0:
                return
            status, head = http1.read_response(bytes(self._response_head[:end]), self._request.is_upgrade)
            rest = bytes(self._response_head[end + len(http1.HEAD_END) :])
            if self._entry is not None:
                self._entry.status = status
            self._response_head = bytearray(rest) if status < 200 and status != 101 else None
            self.write(head)
            if self._response_head is None:
                self.write(rest)
            if status == 101:
                self._body = None

    def server_ended(self) -> None:
        if self._response_head is not None:
            self._send_bad_gateway("closed the connection without an answer", "UND_ERR_SOCKET")
        elif self._body is not None:
            self._finish()
        else:
            self.send_eof()
            self._close_if_both_ended()

    def server_lost(self, error: Exception | None) -> None:
        if self._is_over:
            return
        if self._response_head is not None:
            code = "UND_ERR_SOCKET" if error is None else "ECONNRESET"
            self._send_bad_gateway("closed the connection without an answer", code)
        elif error is not None:
            # Abort the connection: after a regular end, the client would consider the truncated response
            # complete.
            self.abort_both()
        else:
            self._finish()

    def _send_bad_gateway(self, what: str, error_code: str) -> None:
        host = self._request.host if self._request is not None else ""
        self._send_error(502, f"{host} {what}.", error_code)

    def _send_error(self, status: int, text: str, error_code: str | None = None) -> None:
        if self._entry is not None:
            self._entry.error = error_code or "EPROTO"
        headers = () if error_code is None else (("X-Hutch-Egress", error_code),)
        response = http1.proxy_response(status, HTTPStatus(status).phrase, text, headers)
        if self._request is not None and self._request.is_tunnel and error_code is not None:
            self._proxy.remember_failure(self._request, response)
        self.write(response)
        self._finish()

    def _finish(self) -> None:
        """Ends the response with EOF and waits until the client closes. Closing with unread input would
        discard the response.
        """
        self._is_over = True
        self._buffered.clear()
        if self._server is not None:
            self._server.abort()
        if self.has_ended:
            self._close()
            return
        self.send_eof()
        self.set_reading(True)
        self._set_idle_timeout(LINGER_SECONDS)

    def _close_if_both_ended(self) -> None:
        if self.has_ended and self._server is not None and self._server.has_ended:
            self._close()

    def _close(self) -> None:
        """Closes the connection after all written data is sent."""
        self._is_over = True
        if self._server is not None:
            self._server.abort()
        if self.transport is not None:
            self.transport.close()

    def abort_both(self) -> None:
        self._is_over = True
        self.abort()
        if self._server is not None:
            self._server.abort()
        if self._connecting is not None:
            self._connecting.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._timer.cancel()
        self.abort_both()
        if self._entry is not None:
            self._entry.ms = round((time.monotonic() - self._entry.started) * 1000, 3)
        self._proxy.remove_client(self)
        self._connection_closed.set_result(None)

    async def wait_closed(self) -> None:
        await self._connection_closed
        if self._connecting is not None:
            await asyncio.wait((self._connecting,))

    def _set_idle_timeout(self, seconds: float) -> None:
        self._idle_timeout = seconds
        self._check_idle()

    def _check_idle(self) -> None:
        """Closes the connection if it is idle. Allows more time while data waits to be written."""
        self._timer.cancel()
        writing = self.transport is not None and self.transport.get_write_buffer_size() > 0
        timeout = IDLE_SECONDS if writing else self._idle_timeout
        left = self._last_activity + timeout - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(min(left, self._idle_timeout), self._check_idle)
        elif self._request is None and not self._is_over:
            self._send_error(408, "The request did not arrive in time.")
        else:
            self.abort_both()
