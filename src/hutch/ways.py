"""What stands behind a jail's only way to the network: a proxy for tools, the gateway for scripts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Hashable
from typing import TYPE_CHECKING, Any

from hutch.sandbox.process import Way

if TYPE_CHECKING:
    from hutch.egress.proxy import Proxy

logger = logging.getLogger("hutch.egress")


class Ways:
    """Opens them for the launcher. Each lasts as long as its jail."""

    def __init__(self) -> None:
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, listener: socket.socket, egress: Hashable) -> Way:
        from hutch.egress.policy import Policy

        if isinstance(egress, Policy):
            from hutch.egress.proxy import Proxy

            way = Proxied(self)
            way.proxy = await Proxy.start(listener, egress, way.refused)
            return way
        from hutch.doors.toolscript.listener import Opened
        from hutch.doors.toolscript.relay import Relay

        assert isinstance(egress, Relay)
        return Opened(listener, egress)

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Has something done to its end, by the time that all is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._closing)


class Proxied:
    """The way of a tool: the proxy, which keeps to its policy."""

    proxy: Proxy

    def __init__(self, ways: Ways) -> None:
        self.run_id: str | None = None
        self._ways = ways

    def refused(self, why: str) -> None:
        """For an operator who wonders why a tool does not work."""
        logger.info("run %s: %s", self.run_id, why)

    def close(self) -> None:
        self._ways.finish(self.proxy.close())
