"""A worker: runs executions of the fronts of a cluster in its sandbox."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic

import msgspec

from hutch.cluster import messages
from hutch.cluster.encryption import PUBLIC_KEY_BYTES
from hutch.cluster.gateway_relay import RelayedGateway, RelayedRequests
from hutch.cluster.link import HELLO, Link, hello_public_key, open_hello, packet_type_and_link
from hutch.cluster.messages import (
    Close,
    FrameType,
    FrontAnnouncement,
    Hello,
    Open,
    OpenEngine,
    OpenPackage,
    OpenScript,
    PlaceKind,
    WorkerAnnouncement,
)
from hutch.cluster.node import (
    ANNOUNCE_SECONDS,
    CHECK_SECONDS,
    FRONT_LOST_SECONDS,
    Node,
    are_compatible,
    repeat,
    stop_task,
)
from hutch.cluster.worker_lease import WorkerLease
from hutch.errors import Busy, HutchError
from hutch.kernel.placement import PackageDetails
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.profile import ENGINES, Profile, profile_for
from hutch.settings import Settings, cores

logger = logging.getLogger("hutch.cluster")

QUICKJS_PLACES_PER_CORE = 64
# Minimum time between two announcements that are sent early because places have changed.
MIN_ANNOUNCE_SECONDS = 0.05
# Maximum number of link ids that are stored. A hello with a stored id opens no link, because an attacker may
# have recorded the hello and sent it again.
MAX_USED_LINKS = 100_000
MAX_ANNOUNCED_PACKAGES = 64
# A worker leaves a front out of its announcements if the front has announced nothing for this time.
FORGET_SECONDS = 60.0
# Minimum time between two log entries about machines without the cluster's secret. Such a machine may send
# any number of packets, which must not fill the log.
STRANGER_SECONDS = 60.0

MadeProfile = tuple[Profile, PackageDetails | None]


class ProfileMaker(msgspec.Struct, frozen=True):
    """Makes the profiles of those executions that need files of this machine."""

    package: Callable[[OpenPackage], Awaitable[MadeProfile]]
    script: Callable[[OpenScript, RelayedGateway], Awaitable[Profile]]


class WorkerTraits(msgspec.Struct, frozen=True):
    isolation: str
    bundle: str
    """Hash of the guest bundle."""


class FrontLink:
    """A front that uses this worker: its link and its executions."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.link: Link
        self.requests: RelayedRequests
        self.leases: dict[int, WorkerLease] = {}
        self.last_seen = monotonic()


class Worker:
    """Serves leases of its pool to fronts."""

    def __init__(self, node: Node, pool: Pool, profiles: ProfileMaker, traits: WorkerTraits) -> None:
        self._node = node
        self._pool = pool
        self._profiles = profiles
        self._traits = traits
        self.places = places_of(node.settings)
        self._fronts: dict[str, FrontLink] = {}
        self._links: dict[bytes, FrontLink] = {}
        self._used_links: dict[bytes, None] = {}
        self._lost_links: dict[str, bytes] = {}
        """Id of the last link to each front that was lost."""
        self._heard_fronts: dict[str, float] = {}
        """Time of the last announcement of each front."""
        self._packages: dict[str, Profile] = {}
        """Profile of the last execution of each package that was used recently."""
        self._used: Counter[PlaceKind] = Counter()
        self._is_draining = False
        self._announced_at = 0.0
        self._stranger_logged_at = -STRANGER_SECONDS
        self._announce_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self.on_announce: Callable[[], None] = lambda: None

    async def start(self) -> None:
        node = self._node
        await node.follow_fronts(self._front_announced)
        await node.connection.subscribe(node.subjects.worker(node.id), self._receive)
        node.connection.on_reconnect.append(self._reconnected)
        self._task = asyncio.create_task(repeat(self._check))

    @property
    def lease_count(self) -> int:
        return sum(len(front.leases) for front in self._fronts.values())

    async def drain(self, seconds: float) -> bool:
        """Takes no new executions, asks the fronts to move waiting executions to other workers, and lets the
        others finish. Returns False if some did not finish in time.
        """
        self._is_draining = True
        self._announce()
        for front in self._fronts.values():
            front.link.send(FrameType.DRAIN, 0)
        try:
            async with asyncio.timeout(seconds):
                while self.lease_count:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Ends the running executions, notifies their fronts, and leaves the cluster."""
        await stop_task(self._task)
        if self._announce_timer is not None:
            self._announce_timer.cancel()
        for front in [*self._fronts.values()]:
            for lease in [*front.leases.values()]:
                lease.end_lost("the worker was stopped")
        await asyncio.gather(*(front.link.flushed(1.0) for front in self._fronts.values()))
        self._node.announce(self._node.subjects.workers, self._announcement(is_leaving=True))
        for front in [*self._fronts.values()]:
            self._forget(front)

    # --- membership ---

    def _check(self) -> None:
        if monotonic() - self._announced_at >= ANNOUNCE_SECONDS - CHECK_SECONDS / 2:
            self._announce()
        for id, heard_at in [*self._heard_fronts.items()]:
            if monotonic() - heard_at > FORGET_SECONDS:
                del self._heard_fronts[id]
                self._lost_links.pop(id, None)
        for front in [*self._fronts.values()]:
            if monotonic() - front.last_seen > FRONT_LOST_SECONDS:
                logger.warning("the front %s is lost; its executions are cancelled", front.hello.node)
                self._lose(front)

    def _announce(self) -> None:
        if self._announce_timer is not None:
            self._announce_timer.cancel()
            self._announce_timer = None
        self._announced_at = monotonic()
        self._node.announce(self._node.subjects.workers, self._announcement())
        if self._node.connection.problem is None:
            self.on_announce()

    def _announce_soon(self) -> None:
        if self._announce_timer is None:
            wait = max(0.0, self._announced_at + MIN_ANNOUNCE_SECONDS - monotonic())
            self._announce_timer = asyncio.get_running_loop().call_later(wait, self._announce)

    def _announcement(self, *, is_leaving: bool = False) -> WorkerAnnouncement:
        node, traits = self._node, self._traits
        used = {
            id: dict(Counter[str](lease.kind for lease in front.leases.values()))
            for id, front in self._fronts.items()
            if front.leases
        }
        has_containers = traits.isolation == "container"
        return WorkerAnnouncement(
            id=node.id,
            node=node.name,
            version=node.version,
            number=node.next_number(),
            is_leaving=is_leaving,
            public_key=node.key.public,
            isolation=traits.isolation,
            bundle=traits.bundle,
            engines=[*ENGINES, "npm", *(["script"] if has_containers else [])],
            places={str(kind): count for kind, count in self.places.items()},
            used=used,
            packages=[*self._packages],
            spares=[name for name, profile in self._packages.items() if self._pool.has_unused(profile)],
            is_draining=self._is_draining,
            fronts=[*self._heard_fronts],
            lost_links=[*self._lost_links.values()],
        )

    def _front_announced(self, announcement: FrontAnnouncement) -> None:
        self._heard_fronts.pop(announcement.id, None)
        if not announcement.is_leaving:
            self._heard_fronts[announcement.id] = monotonic()
        else:
            self._lost_links.pop(announcement.id, None)
        front = self._fronts.get(announcement.id)
        if front is None:
            # Announce this worker early, so that a new front knows its workers sooner.
            if not announcement.is_leaving:
                self._announce_soon()
        elif announcement.is_leaving:
            self._forget(front)
        else:
            front.last_seen = monotonic()

    def _lose(self, front: FrontLink) -> None:
        """Cancels the executions of a front that may still wait for them. The next announcement says so."""
        self._forget(front)
        # A front that this worker has not heard of ignores its announcements anyway, and would never be
        # removed from `_lost_links`.
        if front.hello.front in self._heard_fronts:
            self._lost_links[front.hello.front] = front.link.id

    def _forget(self, front: FrontLink) -> None:
        for lease in [*front.leases.values()]:
            lease.cancel()
        front.requests.close()
        front.link.close()
        if self._fronts.get(front.hello.front) is front:
            del self._fronts[front.hello.front]
        self._links.pop(front.link.id, None)

    def _reconnected(self) -> None:
        self._announce()
        for front in self._fronts.values():
            front.link.resend()

    # --- links ---

    def _receive(self, packet: bytes) -> None:
        found = packet_type_and_link(packet)
        if found is None:
            return
        type, link_id = found
        front = self._links.get(link_id)
        if front is not None:
            front.link.receive(packet)
        elif type == HELLO and link_id not in self._used_links:
            self._open_link(link_id, packet)

    def _open_link(self, link_id: bytes, packet: bytes) -> None:
        node = self._node
        public_key = hello_public_key(packet, PUBLIC_KEY_BYTES)
        try:
            keys = node.key.link_keys(public_key, node.secret, link_id)
        except ValueError:
            return
        content = open_hello(packet, public_key, keys.to_worker)
        if content is None:
            self._log_stranger()
            return
        hello = messages.decode(content, Hello)
        self._used_links[link_id] = None
        while len(self._used_links) > MAX_USED_LINKS:
            del self._used_links[next(iter(self._used_links))]
        if (old := self._fronts.get(hello.front)) is not None:
            # The front opens a new link because it has lost the old one, and with it all executions of the
            # old link.
            self._forget(old)
        self._lost_links.pop(hello.front, None)
        front = FrontLink(hello)
        subject = node.subjects.front(hello.front)

        def receive(type: int, number: int, content: bytes) -> None:
            self._on_frame(front, type, number, content)

        front.link = Link(
            link_id,
            keys.to_front,
            keys.to_worker,
            lambda data: node.connection.publish(subject, data),
            node.connection.max_payload,
            receive,
            lambda reason: self._link_lost(front, reason),
        )
        front.requests = RelayedRequests(front.link)
        self._fronts[hello.front] = self._links[link_id] = front

    def _log_stranger(self) -> None:
        now = monotonic()
        if now - self._stranger_logged_at >= STRANGER_SECONDS:
            self._stranger_logged_at = now
            logger.warning("a machine without the cluster's secret tried to use this worker")

    def _link_lost(self, front: FrontLink, reason: str) -> None:
        logger.warning("the link to the front %s is lost: %s", front.hello.node, reason)
        self._lose(front)

    # --- leases ---

    def _on_frame(self, front: FrontLink, type: int, number: int, content: bytes) -> None:
        if type == FrameType.OPEN:
            self._open(front, number, content)
        elif type == FrameType.RESPONSE:
            front.requests.receive(number, content)
        elif (lease := front.leases.get(number)) is not None:
            if type == FrameType.LINES:
                lease.receive_lines(content)
            elif type == FrameType.CLOSE:
                lease.close(messages.decode(content, Close))

    def _open(self, front: FrontLink, number: int, content: bytes) -> None:
        request = messages.decode(content, Open)
        engine = request.profile.engine if isinstance(request.profile, OpenEngine) else "npm"
        kind: PlaceKind = "quickjs" if engine == "quickjs" else "process"
        lease = WorkerLease(number, request, front.link, self._pool, kind)
        refusal = self._refusal(front, kind)
        if refusal is not None:
            lease.refuse(refusal)
            return
        front.leases[number] = lease
        self._used[kind] += 1
        lease.on_end = lambda _: self._lease_ended(front, number)
        self._start(lease, front, request)
        # If more than half of the places are taken, announce that early, so that other fronts do not ask a
        # full worker.
        if self._used[kind] * 2 > self.places[kind]:
            self._announce_soon()

    def _start(self, lease: WorkerLease, front: FrontLink, request: Open) -> None:
        profile = request.profile
        if isinstance(profile, OpenEngine):
            if profile.engine not in ENGINES:
                lease.refuse(HutchError(f"This worker has no engine {profile.engine!r}."))
            elif profile.engine == "quickjs":
                lease.start(profile_for(profile.engine))
            else:
                lease.start_with(lambda: _plain(profile.engine))
        elif isinstance(profile, OpenPackage):
            lease.start_with(lambda: self._package(profile))
        else:
            gateway = RelayedGateway(front.requests, profile.url, profile.revision)

            async def make() -> MadeProfile:
                return await self._profiles.script(profile, gateway), None

            lease.start_with(make)

    async def _package(self, request: OpenPackage) -> MadeProfile:
        profile, details = await self._profiles.package(request)
        name = f"{request.name}@{request.version}"
        self._packages.pop(name, None)
        self._packages[name] = profile
        while len(self._packages) > MAX_ANNOUNCED_PACKAGES:
            del self._packages[next(iter(self._packages))]
        return profile, details

    def _refusal(self, front: FrontLink, kind: PlaceKind) -> HutchError | None:
        if not are_compatible(front.hello.version, self._node.version):
            return HutchError(
                f"The worker {self._node.name} has version {self._node.version}, the front"
                f" {front.hello.version}: they may be one minor version apart."
            )
        if self._is_draining:
            return Busy(f"The worker {self._node.name} is shutting down.")
        if self._used[kind] >= self.places[kind]:
            return Busy(f"The worker {self._node.name} has no free place.")
        return None

    def _lease_ended(self, front: FrontLink, number: int) -> None:
        lease = front.leases.pop(number, None)
        self._ended.set()
        if lease is not None:
            self._used[lease.kind] -= 1
            if len(self._fronts) > 1:
                self._announce_soon()


async def _plain(engine: str) -> MadeProfile:
    return profile_for(engine), None


def places_of(settings: Settings) -> dict[PlaceKind, int]:
    """Returns the number of executions that a worker runs at the same time."""
    given = settings.worker_places
    processes = [count for engine, count in given.items() if engine != "quickjs"]
    return {
        "quickjs": given.get("quickjs", QUICKJS_PLACES_PER_CORE * cores()),
        "process": max(processes) if processes else max(1, settings.max_processes * 4 // 5),
    }
