"""Encrypted, ordered and reliable stream of frames between a front and a worker.

NATS delivers a message at most once, and loses messages while a server restarts. So the packets of a link are
numbered, kept until the peer has acknowledged them, and sent again if an acknowledgement is missing. The
number of a packet is also the nonce of its encryption, so that an attacker can neither repeat nor reorder
packets. The stream is cut into packets of at most `max_payload`, whatever the size of its frames.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from time import monotonic

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hutch.cluster.encryption import open_sealed

logger = logging.getLogger("hutch.cluster")

LINK_ID_BYTES = 16
HELLO, DATA, ACK = 1, 2, 3
_HEADER = struct.Struct(">B16sQ")
_ACK = struct.Struct(">Q?")
_FRAME = struct.Struct(">BQI")
# Size of a packet's header and authentication tag.
PACKET_OVERHEAD = _HEADER.size + 16
MAX_PACKET_BYTES = 256 * 1024
# Maximum number of unacknowledged bytes. It is far below 64 MiB, because a NATS server disconnects a client
# if more data than that waits for this client.
WINDOW_BYTES = 2 * 1024 * 1024
ACK_BYTES = WINDOW_BYTES // 4
ACK_SECONDS = 0.025
# `writable` waits while more bytes than this wait to be sent.
HIGH_WATER_BYTES = 4 * 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024
RESEND_SECONDS = 0.5
CHECK_SECONDS = 0.25
# A link counts as lost if unacknowledged packets have got no acknowledgement for this time.
MAX_SILENCE_SECONDS = 5.0

OnFrame = Callable[[int, int, bytes], None]
"""Receives the type, number and content of a frame."""


class Link:
    """One end of a link. The owner passes packets of the peer to `receive`."""

    def __init__(
        self,
        id: bytes,
        send_key: AESGCM,
        receive_key: AESGCM,
        publish: Callable[[bytes], None],
        max_payload: int,
        on_frame: OnFrame,
        on_lost: Callable[[str], None],
        hello: bytes = b"",
    ) -> None:
        """`hello` is sent before the first packet, and again until the first packet is acknowledged."""
        self.id = id
        self._send_key, self._receive_key = send_key, receive_key
        self._publish = publish
        self._max_part = min(MAX_PACKET_BYTES, max_payload) - PACKET_OVERHEAD
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._hello = hello
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._unacknowledged: deque[tuple[int, bytes]] = deque()
        self._in_flight = 0
        self._next = self._expected = self._acknowledgements = self._peer_acknowledgement = 0
        self._received = bytearray()
        self._bytes_since_ack = 0
        self._is_flushing = self.is_closed = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._oldest_since = self._sent_at = 0.0
        self._drained = asyncio.Event()
        self._drained.set()
        self._flushed = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that were not sent or not acknowledged yet."""
        return len(self._waiting) + self._in_flight

    def send(self, type: int, number: int, content: bytes = b"") -> None:
        """Sends a frame. Raises ValueError if the frame is too large."""
        if len(content) > MAX_FRAME_BYTES:
            raise ValueError(f"a message has {len(content)} bytes; the limit is {MAX_FRAME_BYTES}")
        if self.is_closed:
            return
        self._waiting += _FRAME.pack(type, number, len(content))
        self._waiting += content
        if len(self._waiting) > HIGH_WATER_BYTES:
            self._drained.clear()
        if not self._is_flushing:
            # Send in the next iteration of the event loop, so that frames that are sent together share a
            # packet.
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    async def writable(self) -> None:
        """Waits while too many bytes wait to be sent."""
        await self._drained.wait()

    async def flushed(self, seconds: float) -> bool:
        """Waits until the peer has acknowledged everything. Returns False if that takes too long."""
        if self._waiting or self._unacknowledged:
            self._flushed.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._flushed.wait()
            except TimeoutError:
                return False
        return True

    def resend(self) -> None:
        """Resends all packets that the peer has not acknowledged."""
        if self.is_closed:
            return
        self._sent_at = monotonic()
        if self._hello:
            self._publish(self._hello)
        for _, packet in self._unacknowledged:
            self._publish(packet)

    def receive(self, packet: bytes) -> None:
        """Handles a packet of the peer. Packets that are not authentic or not expected are dropped."""
        if self.is_closed or len(packet) < PACKET_OVERHEAD:
            return
        header, content = packet[: _HEADER.size], packet[_HEADER.size :]
        type, _, number = _HEADER.unpack(header)
        if type == DATA:
            part = open_sealed(self._receive_key, _nonce(type, number), content, header)
            if part is None:
                return
            if number == self._expected:
                self._expected += 1
                self._accept(part)
            else:
                # Either a packet before this one was lost, or the peer has sent a packet again because the
                # acknowledgement was lost. So acknowledge again. Only authentic packets get here: with forged
                # packets, an attacker could make the peer resend up to WINDOW_BYTES each time.
                self._acknowledge(has_gap=number > self._expected)
        elif type == ACK and number >= self._peer_acknowledgement:
            opened = open_sealed(self._receive_key, _nonce(type, number), content, header)
            if opened is not None and len(opened) == _ACK.size:
                self._peer_acknowledgement = number + 1
                self._acknowledged(*_ACK.unpack(opened))

    def close(self) -> None:
        self.is_closed = True
        self._drained.set()
        self._flushed.set()
        for timer in (self._ack_timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self._unacknowledged.clear()
        self._in_flight = 0

    def _flush(self) -> None:
        self._is_flushing = False
        waiting = self._waiting
        while waiting and self._in_flight < WINDOW_BYTES and not self.is_closed:
            part = bytes(waiting[: self._max_part])
            del waiting[: self._max_part]
            header = _HEADER.pack(DATA, self.id, self._next)
            packet = header + self._send_key.encrypt(_nonce(DATA, self._next), part, header)
            now = monotonic()
            if not self._unacknowledged:
                self._oldest_since = self._sent_at = now
            self._unacknowledged.append((self._next, packet))
            self._in_flight += len(packet)
            self._next += 1
            if self._hello and self._next == 1:
                self._publish(self._hello)
            self._publish(packet)
        if len(waiting) <= HIGH_WATER_BYTES // 2:
            self._drained.set()
        if self._unacknowledged and self._check_timer is None:
            self._check_timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._check_timer = None
        if not self._unacknowledged or self.is_closed:
            return
        now = monotonic()
        if now - self._oldest_since > MAX_SILENCE_SECONDS:
            self._lose(f"it acknowledged nothing for {MAX_SILENCE_SECONDS:g} s")
            return
        if now - self._sent_at > RESEND_SECONDS:
            self.resend()
        self._check_timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def _lose(self, reason: str) -> None:
        self.close()
        self._on_lost(reason)

    def _acknowledged(self, expected: int, has_gap: bool) -> None:
        self._hello = b"" if expected else self._hello
        is_news = False
        while self._unacknowledged and self._unacknowledged[0][0] < expected:
            self._in_flight -= len(self._unacknowledged.popleft()[1])
            is_news = True
        if is_news:
            self._oldest_since = self._sent_at = monotonic()
        elif has_gap and monotonic() - self._sent_at > ACK_SECONDS:
            self.resend()
        if self._waiting:
            self._flush()
        elif not self._unacknowledged:
            self._flushed.set()

    def _accept(self, part: bytes) -> None:
        self._bytes_since_ack += len(part)
        if self._bytes_since_ack >= ACK_BYTES:
            self._acknowledge()
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(ACK_SECONDS, self._acknowledge)
        received = self._received
        received += part
        start = 0
        while len(received) - start >= _FRAME.size:
            type, number, size = _FRAME.unpack_from(received, start)
            if size > MAX_FRAME_BYTES:
                self._lose(f"it sent a message of {size} bytes; the limit is {MAX_FRAME_BYTES}")
                return
            end = start + _FRAME.size + size
            if len(received) < end:
                break
            content = bytes(memoryview(received)[start + _FRAME.size : end])
            start = end
            try:
                self._on_frame(type, number, content)
            except msgspec.DecodeError as error:
                self._lose(f"it sent an invalid message: {error}")
            except Exception:
                # Do not end the link, because its other executions can continue.
                logger.exception("a message of another machine could not be handled")
            if self.is_closed:
                return
        del received[:start]

    def _acknowledge(self, *, has_gap: bool = False) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        if self.is_closed:
            return
        self._bytes_since_ack = 0
        header = _HEADER.pack(ACK, self.id, self._acknowledgements)
        nonce = _nonce(ACK, self._acknowledgements)
        self._acknowledgements += 1
        self._publish(header + self._send_key.encrypt(nonce, _ACK.pack(self._expected, has_gap), header))


def hello_packet(id: bytes, public_key: bytes, key: AESGCM, content: bytes) -> bytes:
    """Builds the packet with which a front opens a link."""
    header = _HEADER.pack(HELLO, id, 0)
    return header + public_key + key.encrypt(_nonce(HELLO, 0), content, header + public_key)


def open_hello(packet: bytes, public_key: bytes, key: AESGCM) -> bytes | None:
    """Returns the content of a hello, or None if it is not authentic."""
    header, sealed = packet[: _HEADER.size], packet[_HEADER.size + len(public_key) :]
    return open_sealed(key, _nonce(HELLO, 0), sealed, header + public_key)


def packet_type_and_link(packet: bytes) -> tuple[int, bytes] | None:
    """Returns None if the data is not a packet."""
    if len(packet) < PACKET_OVERHEAD:
        return None
    type, id, _ = _HEADER.unpack_from(packet)
    return type, id


def hello_public_key(packet: bytes, size: int) -> bytes:
    return packet[_HEADER.size : _HEADER.size + size]


def _nonce(type: int, number: int) -> bytes:
    return struct.pack(">BxxxQ", type, number)
