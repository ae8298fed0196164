"""Connects the listener inside each jail to the egress proxy (for tools) or to the gateway (for scripts)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Hashable, Sequence
from typing import TYPE_CHECKING, Any, cast

from hutch.sandbox.runner.process import Uplink

if TYPE_CHECKING:
    from hutch.egress.proxy.proxy import EgressProxy
    from hutch.protocols.toolscript.execute import ScriptGateway
    from hutch.telemetry.counters import EgressCounters

logger = logging.getLogger("hutch.egress")


class JailUplinks:
    """Opens an uplink for each jail of the launcher. The uplink lasts as long as the jail."""

    def __init__(self, counters: EgressCounters | None = None) -> None:
        self._counters = counters
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, listener: socket.socket, dns: socket.socket | None, egress: Hashable) -> Uplink:
        from hutch.egress.policy import EgressPolicy

        if isinstance(egress, EgressPolicy):
            from hutch.egress.proxy.proxy import EgressProxy

            uplink = ProxyUplink(self)
            uplink.proxy = await EgressProxy.start(listener, egress, uplink.log_refusal, dns, self._counters)
            return uplink
        from hutch.protocols.toolscript.jail_server.listener import JailListener

        return JailListener(listener, cast("ScriptGateway", egress))

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks)


class ProxyUplink:
    """Uplink of a tool: an egress proxy with the tool's policy."""

    proxy: EgressProxy

    def __init__(self, uplinks: JailUplinks) -> None:
        self.run_id: str | None = None
        self._uplinks = uplinks

    def begin_run(self, run_id: str) -> Sequence[Any]:
        self.run_id = run_id
        return self.proxy.start_log()

    def log_refusal(self, reason: str) -> None:
        logger.info("run %s: %s", self.run_id, reason)

    def close(self) -> None:
        self._uplinks.start_task(self.proxy.close())
