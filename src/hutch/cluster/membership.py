"""The workers that a front knows: their announcements, links and free places."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic

from hutch.cluster import messages
from hutch.cluster.link import LINK_ID_BYTES, Link, hello_packet, packet_type_and_link
from hutch.cluster.messages import FrameType, Hello, PlaceKind, WorkerAnnouncement
from hutch.cluster.node import QUIET_SECONDS, WORKER_LOST_SECONDS, Node, are_compatible
from hutch.cluster.remote_runner import RemoteRunner
from hutch.sandbox.runner.profile import Profile
from hutch.settings import Settings

logger = logging.getLogger("hutch.cluster")

OnRequest = Callable[["KnownWorker", int, int, bytes], None]
"""Handles a frame with a request of a script's jail, or with the cancellation of a request. The arguments are
the worker, and the type, number and content of the frame.
"""


class KnownWorker:
    """State of a worker that a front knows: its last announcement, its link and its runners."""

    def __init__(self, announcement: WorkerAnnouncement) -> None:
        self.announcement = announcement
        self.last_seen = monotonic()
        self.problem: str | None = None
        """Reason why this worker gets no work at all, or None."""
        self.link: Link
        self.runners: dict[int, RemoteRunner] = {}
        self.gateways: set[str] = set()
        """Revisions of the gateways whose scripts were sent to this worker."""
        self.request_bytes = 0
        """Number of bytes in memory for this worker's gateway requests that are being answered."""
        self.in_flight: Counter[PlaceKind] = Counter()
        self.is_full: set[PlaceKind] = set()
        """Kinds of places that the worker refused because it had none left, although its last announcement
        had free ones.
        """
        self._numbers = itertools.count(1)

    @property
    def id(self) -> str:
        return self.announcement.id

    @property
    def name(self) -> str:
        return self.announcement.node

    def is_usable(self, engine: str) -> bool:
        """Returns True if the worker can be asked for runners of this engine."""
        announcement = self.announcement
        return (
            self.problem is None
            and not announcement.is_draining
            and engine in announcement.engines
            and monotonic() - self.last_seen < QUIET_SECONDS
        )

    def free(self, kind: PlaceKind, front: str) -> int:
        """Returns the number of free places. The places that other fronts use come from the worker's
        announcement. This front counts its own places itself, because announcements are late.
        """
        if kind in self.is_full:
            return 0
        announcement = self.announcement
        others = sum(used.get(kind, 0) for id, used in announcement.used.items() if id != front)
        return announcement.places.get(kind, 0) - others - self.in_flight[kind]

    def open_runner(self, profile: Profile, kind: PlaceKind, run_id: str) -> RemoteRunner:
        number = next(self._numbers)
        runner = self.runners[number] = RemoteRunner(profile, self.link, number, self.name, run_id)
        self.in_flight[kind] += 1
        return runner

    def runner_of(self, run_id: str | None) -> RemoteRunner | None:
        """Returns the runner of a run of this front, if it is on this worker."""
        if run_id is None:
            return None
        return next((runner for runner in self.runners.values() if runner.run_id == run_id), None)

    def forget_runner(self, runner: RemoteRunner, kind: PlaceKind) -> None:
        if self.runners.pop(runner.number, None) is not None:
            self.in_flight[kind] -= 1


class Membership:
    """Follows the announcements of workers, and keeps a link to each of them."""

    def __init__(self, node: Node, on_change: Callable[[], None], on_request: OnRequest) -> None:
        self._node = node
        self._on_change = on_change
        self._on_request = on_request
        self.workers: dict[str, KnownWorker] = {}
        self.has_workers = asyncio.Event()
        """Set once a worker was found."""
        self.on_unheard: Callable[[], None] = lambda: None
        """Called if a worker has probably not heard of this front recently."""
        self._links: dict[bytes, KnownWorker] = {}

    async def start(self) -> None:
        node = self._node
        await node.connection.subscribe(node.subjects.front(node.id), self._receive)
        await node.follow_workers(self._announced)

    def usable(self, engine: str) -> Iterator[KnownWorker]:
        return (worker for worker in self.workers.values() if worker.is_usable(engine))

    def check(self) -> None:
        """Marks workers as lost if they have sent no announcement for WORKER_LOST_SECONDS."""
        for worker in [*self.workers.values()]:
            silence = monotonic() - worker.last_seen
            if silence > WORKER_LOST_SECONDS:
                self._lose(worker, f"it sent nothing for {silence:.0f} s")

    def resend(self) -> None:
        for worker in self.workers.values():
            worker.link.resend()

    def close(self) -> None:
        for worker in [*self.workers.values()]:
            self._forget(worker)

    # --- announcements ---

    def _announced(self, announcement: WorkerAnnouncement) -> None:
        worker = self.workers.get(announcement.id)
        if announcement.is_leaving:
            if worker is not None:
                self._lose(worker, "it was stopped")
            return
        if worker is not None and worker.link.id in announcement.lost_links:
            self._lose(worker, "it had lost this server and has cancelled its executions")
            worker = None
        if worker is None:
            if self._node.id not in announcement.fronts:
                self.on_unheard()
                return
            worker = self._add(announcement)
        elif monotonic() - worker.last_seen > QUIET_SECONDS:
            # If its link was cut, the worker has not heard of this front either.
            self.on_unheard()
        worker.announcement = announcement
        worker.last_seen = monotonic()
        worker.is_full.clear()
        self._on_change()

    def _add(self, announcement: WorkerAnnouncement) -> KnownWorker:
        worker = KnownWorker(announcement)
        worker.problem = worker_problem(announcement, self._node.version, self._node.settings)
        if worker.problem is not None:
            logger.warning("the worker %s gets no work: %s", announcement.node, worker.problem)
        self.workers[announcement.id] = worker
        self.has_workers.set()
        self._open_link(worker)
        return worker

    # --- links ---

    def _open_link(self, worker: KnownWorker) -> None:
        node = self._node
        link_id = os.urandom(LINK_ID_BYTES)
        keys = node.key.link_keys(worker.announcement.public_key, node.secret, link_id)
        hello = messages.encode(Hello(front=node.id, node=node.name, version=node.version))
        subject = node.subjects.worker(worker.id)

        def receive(type: int, number: int, content: bytes) -> None:
            self._on_frame(worker, type, number, content)

        worker.link = Link(
            link_id,
            keys.to_worker,
            keys.to_front,
            lambda packet: node.connection.publish(subject, packet),
            node.connection.max_payload,
            receive,
            lambda reason: self._lose(worker, reason),
            hello_packet(link_id, node.key.public, keys.to_worker, hello),
        )
        self._links[link_id] = worker

    def _receive(self, packet: bytes) -> None:
        found = packet_type_and_link(packet)
        worker = None if found is None else self._links.get(found[1])
        if worker is not None:
            worker.link.receive(packet)

    def _on_frame(self, worker: KnownWorker, type: int, number: int, content: bytes) -> None:
        if type in (FrameType.REQUEST, FrameType.CANCEL_REQUEST):
            self._on_request(worker, type, number, content)
        elif type == FrameType.DRAIN:
            for runner in [*worker.runners.values()]:
                if runner.session is not None:
                    runner.session.move()
        elif (runner := worker.runners.get(number)) is not None:  # type: ignore[assignment]
            runner.receive(type, content)

    def _lose(self, worker: KnownWorker, reason: str) -> None:
        if self.workers.get(worker.id) is not worker:
            return
        logger.warning("the worker %s is lost: %s", worker.name, reason)
        self._forget(worker)
        for runner in [*worker.runners.values()]:
            runner.lose(f"the worker {worker.name} was lost: {reason}")
        self._on_change()

    def _forget(self, worker: KnownWorker) -> None:
        del self.workers[worker.id]
        self._links.pop(worker.link.id, None)
        worker.link.close()


def worker_problem(worker: WorkerAnnouncement, version: str, settings: Settings) -> str | None:
    """Returns the reason why this front must not give work to a worker, or None."""
    if not are_compatible(worker.version, version):
        return (
            f"it has version {worker.version}, and this one is {version}: they may be one minor version apart"
        )
    if settings.isolation == "container" and worker.isolation != "container":
        return f"its isolation is {worker.isolation}, and the setting isolation requires container"
    return None
