"""The stream of frames over a transport that loses, repeats and changes packets."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

import msgspec
import pytest
from tests.support.waiting import eventually

from hutch.cluster import link as links
from hutch.cluster.encryption import NodeKey
from hutch.cluster.link import DATA, MAX_FRAME_BYTES, WINDOW_BYTES, Link, packet_type_and_link

SECRET = "s" * 32
Packets = Callable[[bytes], list[bytes]]


class Pair:
    """Both ends of a link. The test controls the transport between the ends."""

    def __init__(self, max_payload: int = 65_536) -> None:
        front, worker, id = NodeKey(), NodeKey(), os.urandom(16)
        mine, theirs = (
            front.link_keys(worker.public, SECRET, id),
            worker.link_keys(front.public, SECRET, id),
        )
        self.received: list[tuple[int, int, bytes]] = []
        self.lost: list[str] = []
        self.change: Packets = lambda packet: [packet]
        self.sent: list[bytes] = []
        loop = asyncio.get_running_loop()

        def to_worker(packet: bytes) -> None:
            self.sent.append(packet)
            for each in self.change(packet):
                loop.call_soon(self.worker.receive, each)

        self.front = Link(
            id,
            mine.to_worker,
            mine.to_front,
            to_worker,
            max_payload,
            lambda *_: None,
            self.lost.append,
        )
        self.worker = Link(
            id,
            theirs.to_front,
            theirs.to_worker,
            lambda packet: loop.call_soon(self.front.receive, packet),  # type: ignore[arg-type,return-value]
            max_payload,
            lambda *frame: self.received.append(frame),
            self.lost.append,
        )

    def close(self) -> None:
        self.front.close()
        self.worker.close()


async def test_frames_of_any_size_arrive_in_order() -> None:
    pair = Pair()
    frames = [
        (number % 7, number, os.urandom(size)) for number, size in enumerate([0, 1, 65_536, 3_000_000, 5])
    ]
    for frame in frames:
        pair.front.send(*frame)
    assert await pair.front.flushed(10)
    assert pair.received == frames
    assert max(map(len, pair.sent)) <= 65_536
    pair.close()


async def test_lost_and_repeated_packets_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RESEND_SECONDS", 0.02)
    monkeypatch.setattr(links, "CHECK_SECONDS", 0.01)
    pair = Pair(2_048)
    chance = random.Random(1)

    def lossy(packet: bytes) -> list[bytes]:
        return [] if chance.random() < 0.2 else [packet, packet]

    pair.change = lossy
    content = os.urandom(40_000)
    pair.front.send(1, 1, content)
    await eventually(lambda: pair.received)
    assert pair.received == [(1, 1, content)]
    pair.close()


async def test_changed_and_foreign_packets_are_dropped() -> None:
    pair = Pair()
    stranger = Pair()
    stranger.front.id = pair.front.id
    stranger.change = lambda packet: []
    stranger.front.send(1, 1, b"forged")
    await eventually(lambda: stranger.sent)
    pair.worker.receive(stranger.sent[0])
    pair.worker.receive(b"")
    pair.worker.receive(os.urandom(100))
    pair.change = lambda packet: [packet[:-1] + bytes([packet[-1] ^ 1]), packet]
    pair.front.send(1, 1, b"authentic")
    assert await pair.front.flushed(10)
    assert pair.received == [(1, 1, b"authentic")]
    # An attacker who sends a recorded packet again has no effect.
    pair.worker.receive(pair.sent[0])
    assert len(pair.received) == 1
    pair.close()
    stranger.close()


async def test_forged_numbers_cause_no_answer() -> None:
    """Every client that may publish on NATS can send packets with the id of a link, because the id is not
    secret.
    """
    pair = Pair()
    pair.front.send(1, 1, b"authentic")
    assert await pair.front.flushed(10)
    answers: list[bytes] = []
    pair.worker._publish = answers.append
    (packet,) = pair.sent
    for number in (0, 1, 2, 2**64 - 1):
        pair.worker.receive(packet[:17] + number.to_bytes(8) + os.urandom(40))
    assert answers == []
    # A repeated authentic packet gets an answer, because the acknowledgement of the first packet may have
    # been lost.
    pair.worker.receive(packet)
    assert len(answers) == 1
    pair.close()


async def test_invalid_message_ends_the_link() -> None:
    pair = Pair()

    def decode(*_: object) -> None:
        raise msgspec.DecodeError("missing field")

    pair.worker._on_frame = decode
    pair.front.send(1, 1, b"x")
    await eventually(lambda: pair.lost)
    assert pair.lost == ["it sent an invalid message: missing field"]
    pair.close()


async def test_content_is_not_readable() -> None:
    pair = Pair()
    pair.front.send(1, 1, b"a secret of the caller")
    assert await pair.front.flushed(10)
    assert not any(b"secret" in packet for packet in pair.sent)
    pair.close()


async def test_bytes_on_their_way_are_bounded() -> None:
    pair = Pair()
    pair.change = lambda packet: []
    pair.front.send(1, 1, bytes(16 * 1024 * 1024))
    await eventually(lambda: pair.sent)
    data = [packet for packet in pair.sent if (packet_type_and_link(packet) or (0,))[0] == DATA]
    assert sum(map(len, data)) <= WINDOW_BYTES + 65_536
    writing = asyncio.ensure_future(pair.front.writable())
    await asyncio.sleep(0)
    assert not writing.done()
    pair.close()
    await writing


async def test_link_without_acknowledgements_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(links, "CHECK_SECONDS", 0.01)
    pair = Pair()
    pair.change = lambda packet: []
    pair.front.send(1, 1, b"x")
    await eventually(lambda: pair.lost)
    assert pair.lost == ["it acknowledged nothing for 0.05 s"]
    pair.close()


async def test_message_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    with pytest.raises(ValueError, match=f"the limit is {MAX_FRAME_BYTES}"):
        pair.front.send(1, 1, bytes(MAX_FRAME_BYTES + 1))
    # The receiver closes the link to a peer that sends a message above the limit.
    pair.front.send(1, 1, bytes(2_000))
    monkeypatch.setattr(links, "MAX_FRAME_BYTES", 1_000)
    await eventually(lambda: pair.lost)
    assert pair.lost == ["it sent a message of 2000 bytes; the limit is 1000"]
    pair.close()
