"""A run in a server's care: who drives it, what is seen of it, and what was said to its steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from hutch.doors.rep.codes import RpcError
from hutch.doors.rep.executor import TransportBroken

if TYPE_CHECKING:
    from hutch.doors.rep.orchestrator import FlowDrive
    from hutch.doors.rep.watching import Watch

logger = logging.getLogger("hutch.rep")

MOST_STDERR_BYTES = 48 * 1024
"""Of what the runtime of one run writes to stderr."""
_LONGEST_LINE = 4096


class Said(NamedTuple):
    """Somebody's word to a step."""

    approved: bool
    by: str | None = None
    reason: str | None = None


class Care:
    """A run that is being seen through."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.drive: FlowDrive | None = None
        self.watch: Watch | None = None
        self.words: dict[str, Said] = {}
        """What was said to steps that will ask."""
        self.is_reopened = False
        """Whether the run is to go on once more after its end."""
        self._saying: set[asyncio.Task[None]] = set()

    @property
    def is_working(self) -> bool:
        return self.drive is not None and not (self.watch is not None and self.watch.only_waits)

    def hear(self, event: dict[str, Any]) -> None:
        assert self.watch is not None
        self.watch.hear(event)
        if event["type"] == "approval" and (said := self.words.pop(event["step_id"], None)) is not None:
            task = asyncio.create_task(self._say(event["step_id"], said))
            self._saying.add(task)
            task.add_done_callback(self._saying.discard)

    async def _say(self, step_id: str, said: Said) -> None:
        if self.drive is not None:
            with contextlib.suppress(RpcError, TransportBroken):
                await self.drive.approve(step_id, said.approved, by=said.by, reason=said.reason)


class Complaints:
    """What a runtime writes to stderr, for the log: the server's own lines stay whole."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._room = MOST_STDERR_BYTES
        self._rest = b""

    def hear(self, data: bytes) -> None:
        self._room -= len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LONGEST_LINE:]
        for line in lines if self._room > 0 else ():
            logger.warning("run %s: %s", self._run_id, line[:_LONGEST_LINE].decode(errors="replace"))
