"""The only way out of a jail: an HTTP proxy that connects under a policy.

Tunnels (CONNECT), and http:// requests, one a connection. Nothing is kept beyond what is on its way: who
does not read is not read for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from hutch.egress import message
from hutch.egress.message import BadMessage, Framing, Request
from hutch.egress.policy import Policy, Refused
from hutch.egress.resolver import Unreachable, reach, resolve

logger = logging.getLogger("hutch")

MAX_CONNECTIONS = 128
MAX_LOOKUPS = 8
HEAD_SECONDS = 30.0
IDLE_SECONDS = 300.0
# For a client to take its answer and leave.
LINGER_SECONDS = 10.0
# Until there is a descriptor for the next connection.
PAUSE_SECONDS = 0.1

# SO_LINGER, on, 0 s: closing drops what is unsent and tells the other side so.
_RESET = struct.pack("ii", 1, 0)

OnRefused = Callable[[str], None]


class Proxy:
    """Serves one listening socket under one policy."""

    def __init__(self, listener: socket.socket, policy: Policy, on_refused: OnRefused | None = None) -> None:
        self.policy = policy
        self.sent = 0
        """Bytes to other servers."""
        self.received = 0
        """Bytes from them."""
        self._listener = listener
        self._on_refused = on_refused
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._clients: set[_Client] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def start(
        cls, listener: socket.socket, policy: Policy, on_refused: OnRefused | None = None
    ) -> Proxy:
        """Serves until it is closed, and the listener, which is its own from now on, with it."""
        listener.setblocking(False)
        proxy = cls(listener, policy, on_refused)
        proxy._accepting = asyncio.get_running_loop().create_task(proxy._accept(), name="hutch-proxy")
        return proxy

    @property
    def connections(self) -> int:
        return len(self._clients)

    async def close(self) -> None:
        """Cuts every connection."""
        self._closed = True
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        self._listener.close()
        clients = list(self._clients)
        for client in clients:
            client.cut()
        for client in clients:
            await client.finished()

    async def _accept(self) -> None:
        """Only while there is a place: the rest wait in the jail, where they take nothing of the host."""
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                sock, _ = await loop.sock_accept(self._listener)
                await self._admit(sock)
            except OSError as error:
                self._places.release()
                logger.warning("A tool's connection cannot be accepted: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _admit(self, sock: socket.socket) -> None:
        """Goes through even if it is cancelled: half-way, nobody would be told of the connection's end."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        admission = loop.create_task(loop.connect_accepted_socket(lambda: _Client(self), sock))
        try:
            await asyncio.shield(admission)
        except asyncio.CancelledError:
            await asyncio.wait((admission,))
            raise
        except OSError:
            sock.close()
            raise

    def entered(self, client: _Client) -> None:
        self._clients.add(client)
        if self._closed:
            client.cut()

    def left(self, client: _Client) -> None:
        self._clients.discard(client)
        self._places.release()

    async def reach(self, host: str, port: int) -> socket.socket:
        """Raises Refused, Unreachable."""
        try:
            async with self._lookups:
                addresses = await resolve(self.policy, host, port)
        except Refused as error:
            if self._on_refused is not None:
                self._on_refused(error.message)
            raise
        return await reach(addresses, host, port)


class _End(asyncio.Protocol):
    """One end of a way. While it does not take what it is given, the other end is not read."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.ended = False
        """Whether nothing more will come from there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.read(False)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.read(True)

    def read(self, more: bool) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading() if more else self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def end(self) -> None:
        """Says that nothing more will be written."""
        if self.transport is not None and not self.transport.is_closing():
            # The other side may have gone meanwhile.
            with contextlib.suppress(OSError, RuntimeError):
                self.transport.write_eof()

    def abort(self) -> None:
        """Ends it at once, and so that it cannot be taken for a regular end."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        # It may be closed already without our having been told.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class _Server(_End):
    """The end towards another server."""

    def __init__(self, client: _Client) -> None:
        super().__init__()
        self.other = self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._client.connected(self)

    def data_received(self, data: bytes) -> None:
        self._client.answered(data)

    def eof_received(self) -> bool:
        self.ended = True
        self._client.server_ended()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._client.server_lost(exc)


class _Client(_End):
    """The end towards the guest: reads a request's head, connects, and from then on passes everything on."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._connecting: asyncio.Task[None] | None = None
        self._server: _Server | None = None
        self._over = False
        # Of what the guest says: what no server has yet, and where the body ends (None: nowhere).
        self._request: Request | None = None
        self._waiting = bytearray()
        self._body: Framing | None = None
        # Of what the server says: its head as far as it has come, or None when that is over.
        self._answer: bytearray | None = None
        self._heard = self._loop.time()
        self._patience = HEAD_SECONDS
        self._timer = self._loop.call_later(HEAD_SECONDS, self._look)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.entered(self)

    # --- the guest speaks ---

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._server is not None:
            self._heard = self._loop.time()
            self._pass_on(data)
            return
        seen = len(self._waiting)
        self._waiting += data
        if self._request is None:
            self._read_head(seen)
        elif len(self._waiting) > message.MAX_HEAD:
            self.read(False)

    def _read_head(self, seen: int) -> None:
        end = self._waiting.find(message.END, max(0, seen - len(message.END)))
        if end < 0 and len(self._waiting) <= message.MAX_HEAD:
            return
        if not 0 <= end <= message.MAX_HEAD:
            self._refuse(431, "The request's head is too large.")
            return
        try:
            request = message.read_request(bytes(self._waiting[:end]))
        except BadMessage as error:
            self._refuse(error.status, f"{error}.")
            return
        del self._waiting[: end + len(message.END)]
        self._request = request
        self._body = request.body
        self._heard = self._loop.time()
        self._allow(IDLE_SECONDS)
        self._connecting = self._loop.create_task(self._connect(request), name="hutch-connect")

    async def _connect(self, request: Request) -> None:
        try:
            sock = await self._proxy.reach(request.host, request.port)
        except Refused as error:
            self._refuse(403, error.message, ("X-Hutch-Egress", "refused"))
        except Unreachable as error:
            self._refuse(504 if error.timed_out else 502, error.message, ("X-Hutch-Egress", "unreachable"))
        else:
            try:
                await self._loop.create_connection(lambda: _Server(self), sock=sock)
            except BaseException:
                sock.close()
                raise

    def connected(self, server: _Server) -> None:
        """At once: the server may be the first to speak."""
        assert self._request is not None
        self._server = self.other = server
        self._heard = self._loop.time()
        if self.transport is None or self.transport.is_closing():
            server.abort()
            return
        if self._request.tunnel:
            self.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            self._answer = bytearray()
            self._proxy.sent += len(self._request.head)
            server.write(self._request.head)
        waiting = bytes(self._waiting)
        self._waiting.clear()
        self._pass_on(waiting)
        self.read(True)
        if self.ended:
            self.eof_received()

    def _pass_on(self, data: bytes) -> None:
        assert self._server is not None
        if self._body is not None:
            try:
                # What follows a request has no place here: the connection ends with the answer.
                data = data[: self._body.feed(data)]
            except BadMessage:
                # Half of it is with the server already: no answer would be true.
                self.cut()
                return
        self._proxy.sent += len(data)
        self._server.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self._over or self._request is None:
            self._close()
        elif self._server is None:
            pass  # `connected` comes back here
        elif self._body is None:
            self._server.end()
            self._close_if_over()
        elif self._body.done:
            self._allow(LINGER_SECONDS)
        else:
            self.cut()
        return True

    # --- the server speaks ---

    def answered(self, data: bytes) -> None:
        if self._over:
            return
        self._heard = self._loop.time()
        self._proxy.received += len(data)
        if self._answer is None:
            self.write(data)
            return
        self._answer += data
        try:
            self._read_answer()
        except BadMessage as error:
            self._fail(f"answered with what is not HTTP/1.1: {error}")

    def _read_answer(self) -> None:
        """Passes heads on, until the last of them: others (100 Continue) may come before."""
        assert self._request is not None
        while self._answer is not None:
            end = self._answer.find(message.END)
            if end > message.MAX_HEAD or (end < 0 and len(self._answer) > message.MAX_HEAD):
                raise BadMessage("its head is too large")
            if end < 0:
                return
            status, head = message.read_response(bytes(self._answer[:end]), self._request.upgrade)
            rest = bytes(self._answer[end + len(message.END) :])
            self._answer = bytearray(rest) if status < 200 and status != 101 else None
            self.write(head)
            if self._answer is None:
                self.write(rest)
            if status == 101:
                self._body = None

    def server_ended(self) -> None:
        if self._answer is not None:
            self._fail("closed the connection without an answer")
        elif self._body is not None:
            self._finish()
        else:
            self.end()
            self._close_if_over()

    def server_lost(self, error: Exception | None) -> None:
        if self._over:
            return
        if self._answer is not None:
            self._fail("closed the connection without an answer")
        elif error is not None:
            # An end that looks regular would pass half an answer off as a whole one.
            self.cut()
        else:
            self._finish()

    # --- the end ---

    def _fail(self, what: str) -> None:
        host = self._request.host if self._request is not None else ""
        self._refuse(502, f"{host} {what}.", ("X-Hutch-Egress", "unreachable"))

    def _refuse(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        self.write(message.answer(status, HTTPStatus(status).phrase, text, headers))
        self._finish()

    def _finish(self) -> None:
        """Says that this was all, and lets the client take it: to close with input unread would undo it."""
        self._over = True
        self._waiting.clear()
        if self._server is not None:
            self._server.abort()
        if self.ended:
            self._close()
            return
        self.end()
        self.read(True)
        self._allow(LINGER_SECONDS)

    def _close_if_over(self) -> None:
        if self.ended and self._server is not None and self._server.ended:
            self._close()

    def _close(self) -> None:
        """What was written still leaves."""
        self._over = True
        if self._server is not None:
            self._server.abort()
        if self.transport is not None:
            self.transport.close()

    def cut(self) -> None:
        self._over = True
        self.abort()
        if self._server is not None:
            self._server.abort()
        if self._connecting is not None:
            self._connecting.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._timer.cancel()
        self.cut()
        self._proxy.left(self)
        self._gone.set_result(None)

    async def finished(self) -> None:
        await self._gone
        if self._connecting is not None:
            await asyncio.wait((self._connecting,))

    def _allow(self, silence: float) -> None:
        self._patience = silence
        self._look()

    def _look(self) -> None:
        """Ends what has been silent for too long; but who has not taken everything yet is given the time."""
        self._timer.cancel()
        writing = self.transport is not None and self.transport.get_write_buffer_size() > 0
        patience = IDLE_SECONDS if writing else self._patience
        left = self._heard + patience - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(min(left, self._patience), self._look)
        elif self._request is None and not self._over:
            self._refuse(408, "The request did not come in time.")
        else:
            self.cut()
