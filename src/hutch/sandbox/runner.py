"""What the pool lends: a runner, and the process that holds it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from hutch.sandbox.profile import Profile
from hutch.session.host import Outcome, Session
from hutch.session.link import Link

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]


class Runner(ABC):
    """One process; what is counted and said of it here, the pool and the kernel go by."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.owner: str | None = None
        self.executions = 0
        self.in_flight = 0
        self.idle_since = 0.0
        self.suspects: set[str] = set()
        self.on_exit: Callable[[Runner], None] = lambda _: None
        self.on_output: OnOutput | None = None
        self.imported = False
        """Whether it has loaded what its profile told it to, with or without success."""
        self._exited = asyncio.Event()

    @property
    @abstractmethod
    def link(self) -> Link:
        """The channel to it. Only of a runner that is ready."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it can be spoken to."""

    @property
    def exited(self) -> bool:
        return self._exited.is_set()

    async def wait(self) -> None:
        """Returns when it is gone."""
        await self._exited.wait()

    @abstractmethod
    def began(self, session: Session) -> None:
        """An execution starts on it."""

    @abstractmethod
    def ended(self, outcome: Outcome, session: Session) -> None:
        """It reported an execution's end."""

    @abstractmethod
    def spent(self, outcome: Outcome | None) -> bool:
        """Whether it may not be used again after an execution that ended so (None: it was abandoned)."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it for certain."""

    def memory_used(self) -> int:
        """In bytes, as far as it is known."""
        return 0
