"""DNS server of a jail. It answers only with addresses that the egress policy permits.

It supports only queries for the addresses of one name (types A and AAAA), which `getaddrinfo` sends. It
resolves a name only if the policy could also permit a tunnel to that name. So guests cannot send more data to
name servers with DNS queries than they could with tunnels.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import msgspec

from hutch.egress.addresses import Address
from hutch.egress.policy import EgressRefused
from hutch.egress.resolver import HostUnreachable

MAX_QUERY_BYTES = 1024
# Size that every client accepts (RFC 1035, section 4.2.1).
MAX_RESPONSE_BYTES = 512
MAX_NAME_BYTES = 255
# Maximum number of queries that wait for an answer. Further queries are dropped; the client sends them again.
MAX_PENDING = 32
# Maximum number of queries to read in one callback of the event loop, and in one second. Further queries wait
# in the socket's buffer.
MAX_BATCH = 16
MAX_PER_SECOND = 256

_HEADER = struct.Struct("!HHHHHH")
_QUESTION = struct.Struct("!HH")
_RECORD = struct.Struct("!HHHIH")
_TYPE_A, _TYPE_AAAA, _CLASS_IN = 1, 28, 1
_QR, _RD, _RA = 0x8000, 0x0100, 0x0080
_OPCODE = 0x7800
_NO_ERROR, _FORMAT_ERROR, _SERVER_FAILURE, _NAME_ERROR, _NOT_IMPLEMENTED = 0, 1, 2, 3, 4
_POINTER_TO_QUESTION = 0xC00C
# The addresses of `localhost` do not depend on a name server (RFC 6761, section 6.3).
_LOOPBACK: list[Address] = [IPv4Address("127.0.0.1"), IPv6Address("::1")]

ResolveName = Callable[[str], Awaitable[list[Address]]]
"""Returns the permitted addresses of a name. Raises EgressRefused and HostUnreachable."""


class Query(msgspec.Struct, frozen=True):
    id: int
    flags: int
    name: str
    type: int
    question: bytes

    def response(self, code: int, addresses: list[Address]) -> bytes:
        version = 4 if self.type == _TYPE_A else 6
        records = [
            _RECORD.pack(_POINTER_TO_QUESTION, self.type, _CLASS_IN, 0, len(address.packed)) + address.packed
            for address in addresses
            if address.version == version
        ]
        if records:
            left = MAX_RESPONSE_BYTES - _HEADER.size - len(self.question)
            records = records[: left // len(records[0])]
        flags = _QR | _RA | (self.flags & (_OPCODE | _RD)) | code
        return _HEADER.pack(self.id, flags, 1, len(records), 0, 0) + self.question + b"".join(records)


class DnsServer:
    """Answers queries until it is closed. It takes over the socket."""

    def __init__(self, sock: socket.socket, resolve_name: ResolveName) -> None:
        self._socket = sock
        self._resolve_name = resolve_name
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        # Lookups in progress by name. `getaddrinfo` asks for both types at once, and both queries share one
        # lookup.
        self._lookups: dict[str, asyncio.Future[list[Address]]] = {}
        self._second_began = self._loop.time()
        self._count = 0
        self._pause: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    async def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        pending: list[asyncio.Future[Any]] = [*self._tasks, *self._lookups.values()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def _read(self) -> None:
        for _ in range(MAX_BATCH):
            try:
                data, address = self._socket.recvfrom(MAX_QUERY_BYTES)
            except OSError:
                return
            self._answer(data, address)
            self._count += 1
            if self._count >= MAX_PER_SECOND:
                self._limit_rate()
                return

    def _limit_rate(self) -> None:
        """Stops reading for the rest of the second."""
        left = self._second_began + 1 - self._loop.time()
        if left > 0:
            self._loop.remove_reader(self._socket.fileno())
            self._pause = self._loop.call_later(left, self._resume)
        else:
            self._start_second()

    def _resume(self) -> None:
        self._pause = None
        self._start_second()
        self._loop.add_reader(self._socket.fileno(), self._read)

    def _start_second(self) -> None:
        self._second_began = self._loop.time()
        self._count = 0

    def _answer(self, data: bytes, address: tuple[str, int]) -> None:
        query = parse_query(data)
        if query is None:
            return
        code = _NO_ERROR
        if query.flags & _OPCODE or query.type not in (_TYPE_A, _TYPE_AAAA):
            code = _NOT_IMPLEMENTED
        elif not query.name:
            code = _FORMAT_ERROR
        if code != _NO_ERROR:
            self._send(query.response(code, []), address)
        elif query.name == "localhost":
            self._send(query.response(code, _LOOPBACK), address)
        elif len(self._tasks) < MAX_PENDING:
            task = self._loop.create_task(self._answer_later(query, address), name="hutch-dns")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer_later(self, query: Query, address: tuple[str, int]) -> None:
        code = _NO_ERROR
        addresses: list[Address] = []
        try:
            addresses = await self._lookup(query.name)
        except EgressRefused:
            code = _NAME_ERROR
        except HostUnreachable as error:
            code = _NAME_ERROR if error.error_code == "ENOTFOUND" else _SERVER_FAILURE
        self._send(query.response(code, addresses), address)

    async def _lookup(self, name: str) -> list[Address]:
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = asyncio.ensure_future(self._resolve_name(name))
            lookup.add_done_callback(lambda _: self._lookups.pop(name))
        return await asyncio.shield(lookup)

    def _send(self, response: bytes, address: tuple[str, int]) -> None:
        # If the client has closed its socket or its buffer is full, drop the response. A waiting client asks
        # again.
        with contextlib.suppress(OSError):
            self._socket.sendto(response, address)


def parse_query(data: bytes) -> Query | None:
    """Parses a query with one question. Returns None if it is malformed. The name is in lower case, and empty
    if it contains other characters than a host name.
    """
    if len(data) < _HEADER.size:
        return None
    id, flags, questions, *_ = _HEADER.unpack_from(data)
    if flags & _QR or questions != 1:
        return None
    labels: list[bytes] = []
    at = _HEADER.size
    while at < len(data) and (length := data[at]):
        # A length above 63 marks a compression pointer, which a question does not need.
        if length > 63 or at + length >= len(data) or at - _HEADER.size > MAX_NAME_BYTES:
            return None
        labels.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    end = at + 1 + _QUESTION.size
    if end > len(data):
        return None
    type, record_class = _QUESTION.unpack_from(data, at + 1)
    if record_class != _CLASS_IN:
        return None
    return Query(id, flags, _host_name(labels), type, data[_HEADER.size : end])


def _host_name(labels: list[bytes]) -> str:
    name = b".".join(labels)
    return name.decode().lower() if name.isascii() and not any(b"." in label for label in labels) else ""
