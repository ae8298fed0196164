"""A front: announces itself, follows the workers, and serves the gateway requests of its scripts."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from hutch.cluster import messages
from hutch.cluster.membership import KnownWorker, Membership
from hutch.cluster.messages import PLACE_KINDS, FrameType, FrontAnnouncement, GatewayRequest, GatewayResponse
from hutch.cluster.node import ANNOUNCE_SECONDS, CHECK_SECONDS, Node, repeat, stop_task
from hutch.cluster.placement import ClusterPlacement
from hutch.kernel.placement import ClusterLoad
from hutch.sandbox.pool.pool import Pool

if TYPE_CHECKING:
    from hutch.protocols.toolscript.execute import ScriptGateway
    from hutch.protocols.toolscript.jail_server.http1 import JailRequest, JailResponse

logger = logging.getLogger("hutch.cluster")

MAX_GATEWAYS = 64
# Delay before this front announces itself early, because a worker has not heard of it yet.
SOON_SECONDS = 0.02
# Maximum memory for one worker, for gateway requests that are being answered and for responses that wait to
# be sent.
MAX_REQUEST_BYTES = 256 * 1024 * 1024
REQUEST_OVERHEAD_BYTES = 16 * 1024


class Front:
    """This server as a front of its cluster."""

    def __init__(self, node: Node, pool: Pool, bundle: str) -> None:
        self.node = node
        self.placement = ClusterPlacement(node.settings, pool, node.id, bundle)
        self.placement.on_gateway = self._register_gateway
        self.membership = self.placement.membership = Membership(
            node, self.placement.place_freed, self._on_request
        )
        self.membership.on_unheard = self._announce_soon
        self._announce_timer: asyncio.TimerHandle | None = None
        self._gateways: dict[str, ScriptGateway] = {}
        self._requests: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._announced_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.membership.start()
        self.node.connection.on_reconnect.append(self._reconnected)
        self._announce()
        self._task = asyncio.create_task(repeat(self._check))

    async def wait_for_worker(self, seconds: float) -> bool:
        """Waits until a worker is known. Returns False if there is none after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self.membership.has_workers.wait()
        except TimeoutError:
            return False
        return True

    @property
    def problem(self) -> str | None:
        """Reason why this front cannot run executions, or None. With `cluster_local` there is none, because
        the front itself can run executions.
        """
        if self.node.settings.cluster_local:
            return None
        if self.node.connection.problem is None and not self.load().workers:
            return "no worker is connected"
        return self.node.connection.problem

    def load(self) -> ClusterLoad:
        workers = [worker for worker in self.membership.workers.values() if worker.problem is None]
        places: dict[str, int] = {
            kind: sum(worker.announcement.places.get(kind, 0) for worker in workers) for kind in PLACE_KINDS
        }
        return ClusterLoad(self.placement.wanted(), places, len(workers))

    async def close(self) -> None:
        await stop_task(self._task)
        if self._announce_timer is not None:
            self._announce_timer.cancel()
        for request in [*self._requests.values()]:
            request.cancel()
        self.node.announce(self.node.subjects.fronts, self._announcement(is_leaving=True))
        self.membership.close()
        await self.node.connection.close()

    def _check(self) -> None:
        if monotonic() - self._announced_at >= ANNOUNCE_SECONDS - CHECK_SECONDS / 2:
            self._announce()
        self.membership.check()

    def _announce_soon(self) -> None:
        if self._announce_timer is None:
            self._announce_timer = asyncio.get_running_loop().call_later(SOON_SECONDS, self._announce)

    def _announce(self) -> None:
        if self._announce_timer is not None:
            self._announce_timer.cancel()
            self._announce_timer = None
        self._announced_at = monotonic()
        self.node.announce(self.node.subjects.fronts, self._announcement())

    def _announcement(self, *, is_leaving: bool = False) -> FrontAnnouncement:
        node = self.node
        return FrontAnnouncement(
            id=node.id,
            node=node.name,
            version=node.version,
            number=node.next_number(),
            is_leaving=is_leaving,
            wanted=self.placement.wanted(),
        )

    def _reconnected(self) -> None:
        self._announce()
        self.membership.resend()

    # --- gateway requests of scripts ---

    def _register_gateway(self, revision: str, gateway: Any) -> None:
        self._gateways.pop(revision, None)
        self._gateways[revision] = gateway
        while len(self._gateways) > MAX_GATEWAYS:
            del self._gateways[next(iter(self._gateways))]

    def _on_request(self, worker: KnownWorker, type: int, number: int, content: bytes) -> None:
        key = (worker.id, number)
        if type == FrameType.CANCEL_REQUEST:
            if (task := self._requests.get(key)) is not None:
                task.cancel()
            return
        size = len(content) + REQUEST_OVERHEAD_BYTES
        if (
            key in self._requests
            or worker.request_bytes + size + worker.link.waiting_bytes > MAX_REQUEST_BYTES
        ):
            refusal = GatewayResponse(status=503, headers=[], body=b"The server has too many requests")
            worker.link.send(FrameType.RESPONSE, number, messages.encode(refusal))
            return
        task = asyncio.create_task(self._answer(worker, number, content))
        self._requests[key] = task
        worker.request_bytes += size

        def on_done(_: asyncio.Task[None]) -> None:
            self._requests.pop(key, None)
            worker.request_bytes -= size

        task.add_done_callback(on_done)

    async def _answer(self, worker: KnownWorker, number: int, content: bytes) -> None:
        request = messages.decode(content, GatewayRequest)
        gateway = self._gateways.get(request.gateway) if request.gateway in worker.gateways else None
        runner = worker.runner_of(request.run_id)
        response = CollectedResponse()
        reads = request.method in ("GET", "HEAD")
        if gateway is None:
            await response.send(404, [], b"The gateway of this script is gone")
        elif not (request.run_id is None and reads) and (runner is None or runner.gateway != request.gateway):
            # A worker may call tools only for executions that it runs, and only the tools of the execution's
            # gateway. A read request may have no run, because a starting script reads the module with the
            # tools before its run begins.
            await response.send(403, [], b"This run is not on this worker")
        else:
            if runner is not None and not reads:
                runner.has_effects = True
            await self._handle(gateway, request, response)
        if worker.link.is_closed:
            return
        reply = GatewayResponse(status=response.status, headers=response.headers, body=bytes(response.body))
        try:
            worker.link.send(FrameType.RESPONSE, number, messages.encode(reply))
        except ValueError as error:
            reply = GatewayResponse(status=502, headers=[], body=str(error).encode())
            worker.link.send(FrameType.RESPONSE, number, messages.encode(reply))

    async def _handle(
        self, gateway: ScriptGateway, request: GatewayRequest, response: CollectedResponse
    ) -> None:
        try:
            await gateway.handle(request.run_id, _jail_request(request), cast("JailResponse", response))
        except Exception:
            logger.exception("a request of a script failed")
            await response.send(500, [], b"The server failed; its log says why")


class CollectedResponse:
    """Response of the gateway, collected to be sent to the worker. Has the methods of `JailResponse`."""

    def __init__(self) -> None:
        self.status = 502
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.is_complete = False

    async def send(self, status: int, headers: Any, body: bytes = b"") -> None:
        await self.start(status, headers)
        self.body += body
        self.is_complete = True

    async def start(self, status: int, headers: Any) -> None:
        self.status, self.headers = status, list(headers)

    async def write(self, part: bytes) -> None:
        self.body += part

    async def end(self) -> None:
        self.is_complete = True

    def send_error(self, status: int, message: str) -> None:
        self.status, self.headers, self.body = status, [], bytearray(message.encode())
        self.is_complete = True


def _jail_request(request: GatewayRequest) -> JailRequest:
    from hutch.protocols.toolscript.jail_server.http1 import JailRequest

    jail_request = JailRequest()
    jail_request.method = request.method
    jail_request.url = request.url
    jail_request.headers = list(request.headers)
    jail_request.body = bytearray(request.body)
    jail_request.size = len(request.body)
    jail_request.parse_url()
    return jail_request
