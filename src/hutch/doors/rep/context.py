"""What the steps of a run have at hand: whose run it is, what it may reach, and the rest of Hutch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from hutch.doors.rep.allowance import Allowance

if TYPE_CHECKING:
    from hutch.app import App
    from hutch.egress.broker import Broker
    from hutch.settings import Settings

OWNER = "flow"


class Rooms(Protocol):
    """Whoever has the rest of Hutch, each part made when it is first needed."""

    @property
    def settings(self) -> Settings: ...
    def broker(self) -> Broker:
        """Raises SettingError."""

    async def app(self, egress_allow: tuple[str, ...]) -> App:
        """Raises HutchError where it cannot be had."""


class Approval(NamedTuple):
    """What somebody said to a step that asked."""

    approved: bool
    by: str | None = None
    reason: str | None = None


class Approvals:
    """The steps of a run that wait for somebody."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Approval]] = {}

    def waiting(self) -> list[str]:
        return list(self._waiting)

    async def wait(self, step_id: str, ask: Callable[[], None]) -> Approval:
        """`ask` is called once an answer can be given."""
        answer: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()
        self._waiting[step_id] = answer
        try:
            ask()
            return await answer
        finally:
            del self._waiting[step_id]

    def decide(self, step_id: str, approval: Approval) -> bool:
        """Whether that step waited for it."""
        answer = self._waiting.get(step_id)
        if answer is None or answer.done():
            return False
        answer.set_result(approval)
        return True


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The surroundings of one run."""

    run_id: str
    rooms: Rooms
    approvals: Approvals
    user: str | None = None
    """By name: whose abilities and credentials these are."""
    folder: Path | None = None
    """Where files that steps name are; None if they may name none."""
    allow_shell: bool = False
    egress_allow: tuple[str, ...] = ()
    """What may be reached beside what the settings say."""
    flows: Mapping[str, Any] = {}
    """Flows that steps may run by name."""
    allowance: Allowance = msgspec.field(default_factory=Allowance)
    depth: int = 0
    """In how many other flows this one is."""

    @property
    def owner(self) -> str:
        """Whose executions these are, to the kernel."""
        return self.user or OWNER

    async def app(self) -> App:
        return await self.rooms.app(self.egress_allow)
