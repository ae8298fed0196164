"""Common part of fronts and workers: identity, subjects, announcements, compatibility of versions."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable
from typing import TypeVar

import msgspec

from hutch.cluster import messages
from hutch.cluster.connection import ClusterConnection, check_settings
from hutch.cluster.encryption import AnnouncementKey, NodeKey
from hutch.cluster.messages import Announcement, FrontAnnouncement, WorkerAnnouncement
from hutch.settings import Settings

logger = logging.getLogger("hutch.cluster")

ANNOUNCE_SECONDS = 1.0
# A machine that has announced nothing for this time gets no new work.
QUIET_SECONDS = 2.5
# A worker cancels the executions of a front that has announced nothing for this time. The front restarts them
# on other machines after it has heard nothing from the worker for WORKER_LOST_SECONDS. The worker's time is
# shorter, so that no execution runs twice at the same time. The difference is more than ANNOUNCE_SECONDS,
# because the last announcement of the front may arrive that much later than the last announcement of the
# worker.
# FRONT_LOST_SECONDS is long enough for a link that is cut for 2 s: the last announcement was received up to
# ANNOUNCE_SECONDS earlier, and connecting again takes up to a second.
FRONT_LOST_SECONDS = 4.0
WORKER_LOST_SECONDS = 5.5
CHECK_SECONDS = 0.25

A = TypeVar("A", bound=Announcement)


class Subjects:
    """NATS subjects of a cluster."""

    def __init__(self, cluster: str) -> None:
        self.workers = f"hutch.{cluster}.workers"
        """Announcements of workers."""
        self.fronts = f"hutch.{cluster}.fronts"
        """Announcements of fronts."""
        self._inboxes = f"hutch.{cluster}.to"

    def worker(self, id: str) -> str:
        return f"{self._inboxes}.worker.{id}"

    def front(self, id: str) -> str:
        return f"{self._inboxes}.front.{id}"


class Node:
    """This process as a member of a cluster."""

    def __init__(self, settings: Settings, connection: ClusterConnection, version: str) -> None:
        self.settings = settings
        self.connection = connection
        self.version = version
        self.secret = check_settings(settings)
        self.id = os.urandom(16).hex()
        self.name = settings.cluster_node or socket.gethostname()
        self.key = NodeKey()
        self.subjects = Subjects(settings.cluster_name)
        self._announcement_key = AnnouncementKey(self.secret, settings.cluster_name)
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def announce(self, subject: str, announcement: Announcement) -> None:
        sealed = self._announcement_key.seal(messages.encode(announcement), subject)
        self.connection.publish(subject, sealed)

    async def follow_workers(self, handle: Callable[[WorkerAnnouncement], None]) -> None:
        await self._follow(self.subjects.workers, WorkerAnnouncement, handle)

    async def follow_fronts(self, handle: Callable[[FrontAnnouncement], None]) -> None:
        await self._follow(self.subjects.fronts, FrontAnnouncement, handle)

    async def _follow(self, subject: str, type: type[A], handle: Callable[[A], None]) -> None:
        """Calls the handler with each authentic announcement, only once and in order."""
        numbers: dict[str, int] = {}

        def receive(sealed: bytes) -> None:
            data = self._announcement_key.open(sealed, subject)
            if data is None:
                return
            try:
                announcement = messages.decode(data, type)
            except msgspec.DecodeError:
                # The version of this machine is not compatible, because it has other announcements. Ignore
                # the machine.
                return
            if announcement.number > numbers.get(announcement.id, 0):
                # Keep the number of a machine that has left, so that its old announcements cannot be
                # replayed.
                numbers.pop(announcement.id, None)
                numbers[announcement.id] = announcement.number
                while len(numbers) > 10_000:
                    del numbers[next(iter(numbers))]
                handle(announcement)

        await self.connection.subscribe(subject, receive)


def are_compatible(one: str, other: str) -> bool:
    """Returns True if two versions are at most one minor version apart."""
    first, second = _major_minor(one), _major_minor(other)
    if first is None or second is None:
        return one == other
    return first[0] == second[0] and abs(first[1] - second[1]) <= 1


def _major_minor(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))


async def repeat(check: Callable[[], None]) -> None:
    """Calls `check` every CHECK_SECONDS until cancelled. Continues after an error, because `check` announces
    this machine, and other machines would otherwise consider it lost.
    """
    while True:
        try:
            check()
        except Exception:
            logger.exception("a check of the cluster failed")
        await asyncio.sleep(CHECK_SECONDS)


async def stop_task(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
