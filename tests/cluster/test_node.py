"""Announcements of the machines of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hutch.cluster.encryption import NodeKey
from hutch.cluster.membership import Membership
from hutch.cluster.messages import FrontAnnouncement, WorkerAnnouncement
from hutch.cluster.node import Node
from hutch.settings import Settings


class RecordingConnection:
    """NATS connection that records published messages and delivers them to the subscriber."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.handle: Callable[[bytes], None] = lambda _: None

    def publish(self, subject: str, payload: bytes) -> None:
        self.sent.append(payload)
        self.handle(payload)

    async def subscribe(self, subject: str, handle: Callable[[bytes], None]) -> None:
        self.handle = handle


async def test_recorded_announcements_have_no_effect_when_they_are_sent_again() -> None:
    connection: Any = RecordingConnection()
    node = Node(Settings(cluster_secret="s" * 32), connection, "1.0.0")
    seen: list[int] = []
    await node.follow_fronts(lambda announcement: seen.append(announcement.number))
    for is_leaving in (False, False, True):
        announcement = FrontAnnouncement(
            id=node.id, node="a", version="1.0.0", number=node.next_number(), is_leaving=is_leaving
        )
        node.announce(node.subjects.fronts, announcement)
    assert seen == [1, 2, 3]
    for packet in [*connection.sent, b"", bytes(100)]:
        connection.handle(packet)
    assert seen == [1, 2, 3], "also after the machine has left"


async def test_front_ignores_announcements_from_before_its_start() -> None:
    connection: Any = RecordingConnection()
    node = Node(Settings(cluster_secret="s" * 32), connection, "1.0.0")
    membership = Membership(node, lambda: None, lambda *_: None)
    unheard: list[bool] = []
    membership.on_unheard = lambda: unheard.append(True)
    await node.follow_workers(membership._announced)
    connection.max_payload = 65_536
    fields: dict[str, Any] = {"id": "w", "node": "w", "version": "1.0.0", "isolation": "container"}
    fields |= {"public_key": NodeKey().public, "bundle": "b", "engines": [], "places": {}}
    for number, fronts in enumerate([[], ["another front"], [node.id]], start=1):
        assert membership.workers == {}
        announcement = WorkerAnnouncement(**fields, number=number, fronts=fronts)
        node.announce(node.subjects.workers, announcement)
    assert [*membership.workers] == ["w"]
    assert len(unheard) == 2, "the front announces itself to workers that do not know it"
    membership.close()
