"""Describes one execution, independent of its protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from hutch.errors import ExecutionError
from hutch.kernel.parent_run import parent_run
from hutch.kernel.placement import Recipe
from hutch.sandbox.runner.profile import Profile
from hutch.session.files.model import InputFiles
from hutch.session.limits import Limits
from hutch.session.messages import Job
from hutch.session.run import Result, RunHandle
from hutch.session.suspension import Answer, SavedSession
from hutch.session.tools.provider import Provider
from hutch.session.turn import Turn

INTERNAL_PROTOCOL = "internal"
"""Protocol of executions that Hutch starts for itself, such as precompilations. Such executions are counted
in `hutch_runs_total` and logged at the level DEBUG, but not shown in the run history of their owner.
"""


class Source(msgspec.Struct, frozen=True):
    """Code and inputs as the caller wrote them."""

    code: str | None = None
    inputs: bytes | None = None
    """JSON text."""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    job: Job | None = None
    """Instruction to do something other than run the code, or a precompiled program that replaces the code.
    None to run the code.
    """
    profile: Profile
    limits: Limits = Limits()
    providers: Sequence[Provider] = ()
    unavailable_servers: Mapping[str, str] = {}
    """MCP servers that are not connected, so that their tools are missing, each with the reason. A reason may
    be empty.
    """
    inputs: bytes | None = None
    """JSON text of an object whose properties are variables of the guest; see `session.inputs`."""
    files: InputFiles | None = None
    """Input files, possibly an empty list. With None, the guest has no `files` and no `display`."""
    check: bool = False
    """True to type-check the code before it runs; see `Kernel.check_code`."""
    owner: str = "default"
    protocol: str = "python"
    label: str | None = None
    parent_run_id: str | None = msgspec.field(default_factory=parent_run.get)
    """Id of the run to which this execution belongs, such as a flow run."""
    is_group: bool = False
    """True for the record of a batch, which has no guest and is not counted in metrics."""
    checkpoint_after_ms: float = 0.0
    """Time after which the run is stored while it waits for running tools; 0 for never."""
    stores_calls: bool = False
    """True to store the run before each of its tool calls, so that it continues whenever its process dies."""
    is_durable: bool = False
    """True if every server with the same store has the run's tools, so that another server can continue the
    run.
    """
    has_client_tools: bool = False
    """True if only the client that started the run has its tools, so that only this client can continue it.
    """
    is_storable: bool = False
    """True to store the run if memory is scarce while it waits for tools. Durable runs are stored anyway."""
    asks_client: bool = False
    """True if Hutch asks the run's client for approvals while the run waits in memory. Otherwise the run is
    suspended during an approval, if its protocol can continue it later.
    """
    saved: SavedSession | None = None
    """Suspended session that the execution continues; None to start the code."""
    answers: Mapping[str, Answer] = {}
    """Results of the pending calls of `saved`, by call id."""
    turn: Turn | None = None
    """Makes the execution a turn of a stateful session."""
    recipe: Recipe | None = None
    """Instructions for another machine to make the profile; None if the profile needs no files of this
    machine.
    """
    source: Source | None = None
    """Source that the record contains instead of `code` and `inputs`, if the protocol generates these."""

    @property
    def is_internal(self) -> bool:
        return self.protocol == INTERNAL_PROTOCOL


Recorder = Callable[[Execution, RunHandle, Result], None]
"""Function that receives each run when it has ended."""

CheckCode = Callable[[Execution], Awaitable[ExecutionError | None]]
"""Function that returns the error of an execution whose code has type errors."""
