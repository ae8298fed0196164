"""Gateway of a script on a worker: passes the requests of the jail to the front."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from hutch.cluster import messages
from hutch.cluster.link import Link
from hutch.cluster.messages import FrameType, GatewayRequest, GatewayResponse

if TYPE_CHECKING:
    from hutch.protocols.toolscript.jail_server.http1 import JailRequest, JailResponse

# Maximum number of requests to one front that wait for their responses.
MAX_REQUESTS = 10_000


class RelayedRequests:
    """Requests to one front that wait for their responses."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[GatewayResponse]] = {}

    @property
    def link_id(self) -> bytes:
        return self._link.id

    async def send(self, request: GatewayRequest) -> GatewayResponse | None:
        """Returns the response, or None if the front is lost."""
        if self._link.is_closed or len(self._waiting) >= MAX_REQUESTS:
            return None
        number = next(self._numbers)
        future: asyncio.Future[GatewayResponse] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._link.send(FrameType.REQUEST, number, messages.encode(request))
        try:
            return await future
        except ConnectionError:
            return None
        except asyncio.CancelledError:
            self._link.send(FrameType.CANCEL_REQUEST, number)
            raise
        finally:
            self._waiting.pop(number, None)

    def receive(self, number: int, content: bytes) -> None:
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(messages.decode(content, GatewayResponse))

    def close(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the front is lost"))


class RelayedGateway:
    """A gateway of a front, as a worker sees it. Gateways with the same URL, revision and link are equal, so
    that the pool can reuse runners. The link is compared too, because a runner of a lost link cannot reach
    the front over a new link.
    """

    def __init__(self, requests: RelayedRequests, url: str, revision: str) -> None:
        self.url = url
        self._requests = requests
        self._key = (requests.link_id, url, revision)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RelayedGateway) and self._key == other._key

    async def revision(self) -> str:
        return self._key[2]

    async def handle(self, run_id: str | None, request: JailRequest, response: JailResponse) -> None:
        """Passes a request to the front and sends the front's response to the jail."""
        message = GatewayRequest(
            gateway=self._key[2],
            run_id=run_id,
            method=request.method,
            url=request.url,
            headers=request.headers,
            body=request.take_body(),
        )
        reply = await self._requests.send(message)
        if reply is None:
            response.send_error(502, "The server that has the tools is not reachable")
        else:
            await response.send(reply.status, reply.headers, reply.body)
