"""What this door needs of Hutch; `hutch.app.App` has it all."""

from __future__ import annotations

from typing import Protocol

from hutch.doors.toolscript.execute import Ending, Request, World
from hutch.doors.toolscript.gateway import Gateway
from hutch.kernel import Kernel
from hutch.settings import Settings


class Scripts(Protocol):
    """Runs toolscripts: `hutch.doors.toolscript.execute.Scripts`."""

    async def run(self, request: Request, world: World) -> Ending: ...


class Hutch(Protocol):
    """Somewhere to run code, and the tools that it may call."""

    @property
    def settings(self) -> Settings: ...
    @property
    def kernel(self) -> Kernel: ...
    @property
    def gateway(self) -> Gateway: ...
    @property
    def scripts(self) -> Scripts: ...
    @property
    def world(self) -> World: ...
