"""Subclasses of uvicorn's protocols: limits on connections, request headers, pipelined requests and unread
bodies, and a strict check of `Host`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hutch.egress.client.headers import MAX_HEADERS
from hutch.http.auth import MAX_HOST_CHARS, parse_host
from hutch.http.server.connections import MAX_HEAD_BYTES, ConnectionLimits, ConnectionSlot, HeadTimeout

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGISendEvent

# The parser gets at most this much data at once, unless the data is known to be a body. After each piece,
# this class checks whether the parser has found pipelined requests. Without the limit, the parser could find
# very many requests before that: a request has at least 18 bytes and takes about 2 KiB of memory.
PIECE_BYTES = 1024
# If a connection holds more data of later requests than this, the server stops reading from it. The limit is
# not 0, because a disconnect is noticed only while reading.
MAX_HELD_BYTES = 64 * 1024
# Maximum number of bytes that are read and discarded after a response if its request's body is incomplete.
# This lets the client finish sending and read the response. Closing the connection with unread data would
# discard the response.
MAX_DISCARDED_BYTES = 64 * 1024 * 1024
# Time that a refused client has to read the reason.
LINGER_SECONDS = 1.0

_ABSOLUTE_TARGET = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Limits the data that the server stores for a connection.

    Headers have a maximum size and duration. While a request is answered, the data of later requests is not
    parsed, and only little of it is read.
    """

    flow: _PipelineFlow

    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._slot: ConnectionSlot | None = None
        self._is_lingering = False
        self._head_bytes = 0
        self._in_head = True
        self._head_timeout = HeadTimeout(self._on_head_timeout)
        self._hosts: list[bytes] = []
        self._body_left = 0
        self._discarded_bytes = 0
        self._closes_after_body = False
        self._active: RequestResponseCycle | None = None
        """The request that is being answered, or was answered last."""
        self._held = bytearray()
        self._ignores_input = False
        self._error = (400, "This is not a valid HTTP/1.1 request")
        self._error_is_due = False

    @property
    def _is_answering(self) -> bool:
        return self._active is not None and not self._active.response_complete

    # --- connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _PipelineFlow(transport)
        self._slot = self._limits.open(self.client[0] if self.client else "", transport.abort)
        if self._slot is None:
            self._refuse_connection()
        else:
            self._head_timeout.start()

    def _refuse_connection(self) -> None:
        self._ignores_input = True
        if not self._limits.start_lingering():
            self.transport.abort()
            return
        self._is_lingering = True
        self.transport.write(_error(503, "The server has too many connections; try again later"))
        # Close only the output. Closing the connection with unread input would discard the response.
        self.transport.write_eof()
        self._head_timeout.start(LINGER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timeout.stop()
        if self._slot is not None:
            self._slot.release()
        elif self._is_lingering:
            self._limits.stop_lingering()
        self.pipeline.clear()
        self._held.clear()
        super().connection_lost(exc)
        # Inform the request that is being answered, too, because uvicorn informs only the newest request of
        # the connection.
        if self._active is not None and self._is_answering:
            self._active.disconnected = True
            self._active.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_slot()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_slot()

    def _update_slot(self) -> None:
        if self._slot is not None:
            works = self._active is not None and self._is_answering and not self._active.more_body
            self._slot.set_waiting(not works or self.flow.write_paused)

    # --- input ---

    def data_received(self, data: bytes) -> None:
        if self.pipeline or self._held:
            self._hold(data)
        elif len(data) <= PIECE_BYTES:
            self._parse(data)
        else:
            self._parse_pieces(data)

    def _parse_pieces(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view and not self._ignores_input:
            if self.pipeline:
                self._hold(view)
                return
            size = max(PIECE_BYTES, self._body_left)
            self._parse(view[:size])
            view = view[size:]

    def _parse(self, data: bytes | memoryview) -> None:
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._head_timeout.start()
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                # Answer the request as if it had not asked for an upgrade.
                self._parse(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response(self._error[1])
        if self._head_bytes > MAX_HEAD_BYTES:
            self._ignores_input = True
            self.transport.abort()
        if self.pipeline:
            # uvicorn has paused reading. Resume it, because a disconnect is noticed only while reading.
            self.flow.resume_reading()

    def _hold(self, data: bytes | memoryview) -> None:
        """Keeps data of later requests unparsed until the requests before it are answered."""
        if self._ignores_input:
            return
        self._held += data
        if len(self._held) > MAX_HELD_BYTES:
            self.flow.pause_reading()
            self.flow.is_held = True
        else:
            self.flow.resume_reading()

    # --- parser callbacks ---

    def on_message_begin(self) -> None:
        # Start the timeout here, too, because a pipelined request can start in the data that ended the
        # previous one.
        self._head_timeout.start()
        self._hosts = []
        self._body_left = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            # Ignore trailers, because uvicorn would add them to the headers.
            return
        if len(self.headers) >= MAX_HEADERS:
            self._fail(431, f"A request may have at most {MAX_HEADERS} headers")
        name = name.lower()
        # Remove the white space after the value, which the parser keeps.
        value = value.rstrip(b" \t")
        if name == b"host":
            self._hosts.append(value)
        elif name == b"content-length":
            # The parser has checked that this is a number.
            self._body_left = int(value)
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._check_host()
        self._head_timeout.stop()
        super().on_headers_complete()
        self._head_bytes = 0
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_left = max(0, self._body_left - len(body))
        if self.cycle.response_complete:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self._ignores_input = True
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = self._body_left = self._discarded_bytes = 0
        self._in_head = True
        super().on_message_complete()
        self._update_slot()
        if self._closes_after_body:
            self._ignores_input = True
            self.transport.close()

    def _check_host(self) -> None:
        """Checks `Host` as RFC 9112, section 3.2 requires. In a request with an absolute URL, replaces `Host`
        by the host of the URL.
        """
        hosts = self._hosts
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._fail(400, f"Host: expected one header, got {len(hosts)}")
        if hosts and not _is_host(hosts[0]):
            self._fail(400, "Host: expected a name or an address, with or without a port")
        if self.url.startswith(b"/"):
            return
        match = _ABSOLUTE_TARGET.fullmatch(self.url)
        if match is None or not _is_host(match[1]):
            self._fail(400, "URL: expected a path, or an http URL without a user")
        authority, path = match.groups()
        self.headers[:] = [(b"host", authority), *(each for each in self.headers if each[0] != b"host")]
        self.url = path if path.startswith(b"/") else b"/" + path

    def _fail(self, status: int, message: str) -> NoReturn:
        """Makes the parser stop with an error."""
        self._error = (status, message)
        raise ValueError(message)

    # --- responses ---

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle
        cycle.transport = _CycleTransport(self.transport, self._close_after_response)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def _close_after_response(self) -> None:
        """Closes the connection now if the request was read completely, otherwise at the end of its body."""
        if self._in_head or self._active is not self.cycle:
            self.transport.close()
        else:
            self._closes_after_body = True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self._in_head and not self._is_answering:
            # The app did not read the rest of the body. Give the client as much time to finish sending the
            # body as for the head of a request.
            self._head_timeout.start()
        self._update_slot()
        if self.pipeline:
            return
        if self._error_is_due:
            if not self._is_answering:
                self._send_error()
        elif self._held:
            # The held data is either the next request, or the rest of the body of the request that has just
            # started.
            data, self._held = self._held, bytearray()
            self.flow.is_held = False
            self.flow.resume_reading()
            self._parse_pieces(data)

    def send_400_response(self, msg: str) -> None:
        """Refuses a request that cannot be parsed, once all earlier requests have been answered."""
        self._ignores_input = True
        self._held.clear()
        broken = None if self._in_head else self.cycle
        if self.pipeline and self.pipeline[0][0] is broken:
            self.pipeline.popleft()
        elif self._active is not None and self._active is broken and self._active.response_started:
            self.transport.close()
            return
        if self._is_answering and self._active is not broken:
            self._error_is_due = True
        else:
            self._send_error()

    def _send_error(self) -> None:
        self.transport.write(_error(*self._error))
        self.transport.close()

    # --- upgrades ---

    def handle_websocket_upgrade(self) -> None:
        if self._is_answering:
            # Refuse the upgrade, because the response to the earlier request would be sent after the upgrade,
            # as if it were data of the WebSocket.
            self._error = (400, "Upgrade: expected no earlier request on this connection without a response")
            self.send_400_response(self._error[1])
            return
        self._ignores_input = True
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, QuietWebSocketProtocol)
        protocol.slot, self._slot = self._slot, None
        if protocol.slot is not None:
            protocol.slot.set_waiting(False)

    # --- timeouts ---

    def _on_head_timeout(self) -> None:
        # `cycle` is None before the first request, although uvicorn's types do not say so.
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            # Wait again, because an earlier request of this connection is still being answered.
            self._head_timeout.start()
        else:
            self.transport.close()


class _CycleTransport:
    """The methods of a transport that a request uses. `close` is replaced by another function."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class _PipelineFlow(FlowControl):
    """Flow control that does not resume reading while the connection holds more than MAX_HELD_BYTES of later
    requests.
    """

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class QuietWebSocketProtocol(WebSocketsSansIOProtocol):
    """Treats a complete HTTP response to an upgrade request as a finished handshake."""

    slot: ConnectionSlot | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.slot is not None:
            self.slot.release()
        super().connection_lost(exc)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        # Set the flag here. uvicorn does not set it, and would log an error for every refused upgrade.
        self.handshake_complete = self.handshake_complete or self.close_sent


def _is_host(header: bytes) -> bool:
    # Refuse long headers before the cached function, so that its cache stays small.
    return len(header) <= MAX_HOST_CHARS and _parses_as_host(header)


@lru_cache(1024)
def _parses_as_host(header: bytes) -> bool:
    return parse_host(header.decode("latin-1")) is not None


def _error(status: int, message: str) -> bytes:
    """Builds an error response in the common format, with `Connection: close`."""
    code = "BUSY" if status == 503 else "INVALID_REQUEST"
    body = msgspec.json.encode({"success": False, "error": {"code": code, "message": message}})
    retry = b"retry-after: 1\r\n" if status == 503 else b""
    head = b"%bcontent-type: application/json\r\n%bconnection: close\r\n" % (STATUS_LINE[status], retry)
    return head + b"content-length: %d\r\n\r\n" % len(body) + body
