"""Base class of runners."""

from __future__ import annotations

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from hutch.sandbox.runner.profile import Profile
from hutch.session.multiplexer import Multiplexer
from hutch.session.relayed_session import AnySession
from hutch.session.run import OnOutput, Result


class Runner(ABC):
    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.owner: str | None = None
        self.holder: str | None = None
        """Owner whose share this process counts towards while it runs executions."""
        self.executions = 0
        self.in_flight = 0
        self.idle_since = 0.0
        self.unanswered_sessions: set[str] = set()
        """Ids of sessions that did not confirm a cancellation. While there are any, the runner gets no new
        executions.
        """
        self.on_exit: Callable[[Runner], None] = lambda _: None
        self.on_output: OnOutput | None = None
        self.requests: Sequence[Any] | None = None
        """Outgoing requests of the current execution, if this runner's jail has an uplink."""
        self.has_imported = False
        """True if the preload of the profile has finished, successfully or not."""
        self.is_in_background = False
        """True if the process has a lower priority than others; see `set_background`."""
        self.is_stuck_in_background = False
        """True if the process cannot get its priority back, so that it has to be replaced."""
        self.has_exited = False
        self.can_suspend = True
        """False if the state of an execution would not fit the other runners."""
        self._exit_event = asyncio.Event()

    @property
    @abstractmethod
    def multiplexer(self) -> Multiplexer:
        """Multiplexer of the sessions with this runner. Available once the runner is ready."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """True if the runner is connected and its process runs."""

    def _mark_exited(self) -> None:
        self.has_exited = True
        self._exit_event.set()

    async def wait(self) -> None:
        await self._exit_event.wait()

    @abstractmethod
    def execution_started(self, session: AnySession) -> None:
        """Called before `execute` is sent to this runner."""

    @abstractmethod
    def execution_ended(self, result: Result, session: AnySession) -> Result:
        """Called with the result of an execution. Returns the result. The runner may add the guest's direct
        output to its logs.
        """

    @abstractmethod
    def is_used_up(self, result: Result | None) -> bool:
        """Returns True if the runner must not be reused after this result. The result is None if the
        execution was abandoned.
        """

    @abstractmethod
    def kill(self) -> None:
        """Ends the process."""

    def open_folder(self, path: str) -> int:
        """Opens a folder as the guest sees it. The descriptor outlives the guest. Raises OSError."""
        raise OSError(errno.ENOTSUP, f"The folders of {self.profile.engine} runners cannot be opened")

    @property
    def owner_or_holder(self) -> str | None:
        """Owner of a shared process, even while the process is idle. For a single-use process, the owner of
        its execution.
        """
        return self.owner if self.owner is not None else self.holder

    def cpu_seconds(self) -> float | None:
        """Returns the CPU time of the process since its start, or None if that is unknown."""
        return None

    def set_background(self, in_background: bool) -> None:
        """Lowers the priority of the process, or restores it."""
        self.is_in_background = in_background

    def take_cpu_seconds(self) -> float | None:
        """Called when an execution ends. Returns its share of the CPU time of the process, or None if that is
        unknown. Each second of CPU time is counted for only one execution.
        """
        return None

    def take_output(self) -> bytes:
        """Returns the output on stdout and stderr since the last call. Output that was streamed is not
        included.
        """
        return b""

    async def collect(self) -> None:
        """Called when an execution has ended without the runner's last message. A runner on another machine
        waits a short time for the guest's output.
        """
        return

    def memory_used(self) -> int:
        """Returns the memory in bytes, or 0 if it is unknown."""
        return 0
