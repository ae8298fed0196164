"""Context of a run: its user, its permissions and the services that its steps may use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from hutch.egress.client.client import FetchClient
    from hutch.kernel.durable.suspended_runs import SuspendedRuns
    from hutch.kernel.kernel import Kernel
    from hutch.protocols.abilities.execute import AbilityExecutor
    from hutch.protocols.toolscript.execute import ScriptRunner
    from hutch.protocols.toolscript.gateway.gateway import Gateway
    from hutch.protocols.toolscript.gateway.local import LocalGateway
    from hutch.protocols.tpmjs.execute import ToolExecutor
    from hutch.sandbox.jail.jail import Jail
    from hutch.settings import Settings
    from hutch.store.store import Store
    from hutch.telemetry.tracer import Tracer

DEFAULT_OWNER = "flow"

MAX_RUN_BYTES = 256 * 1024 * 1024
"""Limit for the step outputs and events of a run together. They are held in memory, in the journal, or both.
"""
MAX_NESTED_STEPS = 100_000
"""Limit for the steps of all sub-flows of a run. A sub-flow counts each time it starts."""


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a run that its steps need."""

    run_id: str
    services: RuntimeServices
    approvals: PendingApprovals
    user: str | None = None
    """Name of the user whose abilities and credentials the steps use."""
    folder: Path | None = None
    """Base folder of the file paths in steps. None if steps may not read files."""
    allow_shell: bool = False
    egress_allow: tuple[str, ...] = ()
    """Egress rules in addition to those of the settings."""
    flows: Mapping[str, Any] = {}
    """Flow IR by name, for `flow.run` steps."""
    quota: RunQuota = msgspec.field(default_factory=lambda: RunQuota())
    depth: int = 0
    """Number of flows that this flow is nested in."""
    tracer: Tracer | None = None
    """Exports the spans of the run and its steps. None if traces are not configured."""

    @property
    def owner(self) -> str:
        """Owner of the run's executions."""
        return self.user or DEFAULT_OWNER

    async def step_services(self) -> StepServices:
        """Returns the services for the steps of this run. Raises HutchError."""
        return await self.services.for_steps(self.egress_allow)


class RunQuota:
    """Remaining quota of a run. When the quota is used up, every further step fails at its start."""

    def __init__(self) -> None:
        self._bytes_left = MAX_RUN_BYTES
        self._steps_left = MAX_NESTED_STEPS

    def use_bytes(self, size: int) -> None:
        self._bytes_left -= size

    def use_steps(self, count: int) -> None:
        self._steps_left -= count

    @property
    def exceeded_message(self) -> str | None:
        """Error message if a limit is exceeded, otherwise None."""
        if self._bytes_left < 0:
            return f"The outputs and events of this run exceed {MAX_RUN_BYTES // 2**20} MiB."
        if self._steps_left < 0:
            return f"The sub-flows of this run have more than {MAX_NESTED_STEPS} steps."
        return None


# --- approvals ---


class ApprovalDecision(NamedTuple):
    """Decision on a step that asked for an approval."""

    approved: bool
    by: str | None = None
    reason: str | None = None


class PendingApprovals:
    """Pending approvals of a run, by step id."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[ApprovalDecision]] = {}

    def step_ids(self) -> list[str]:
        return list(self._pending)

    async def wait(self, step_id: str, ask: Callable[[], None]) -> ApprovalDecision:
        """Waits for the decision on a step. Calls `ask` when a decision can be accepted."""
        future: asyncio.Future[ApprovalDecision] = asyncio.get_running_loop().create_future()
        self._pending[step_id] = future
        try:
            ask()
            return await future
        finally:
            del self._pending[step_id]

    def decide(self, step_id: str, decision: ApprovalDecision) -> bool:
        """Passes a decision to a step. Returns False if the step is not waiting."""
        future = self._pending.get(step_id)
        if future is None or future.done():
            return False
        future.set_result(decision)
        return True


# --- services ---


class StepServices(msgspec.Struct, frozen=True, kw_only=True):
    """Services for step kinds. Each callable opens its service on the first call."""

    kernel: Kernel
    jail: Jail
    tools: Callable[[], ToolExecutor]
    """Executor for tools of npm packages."""
    gateway: Callable[[], Gateway]
    """Gateway to the user's MCP servers. Raises ConfigError."""
    scripts: Callable[[], ScriptRunner]
    """Runner for toolscripts."""
    script_gateway: Callable[[], LocalGateway]
    """Interface of the same gateway for toolscripts."""
    store: Callable[[], Awaitable[Store]]
    """Database of users, runs and credentials. Raises StoreError."""
    suspended_runs: Callable[[], SuspendedRuns]
    """Suspended executions of steps. Once this service is open, approvals of `gateway` suspend the
    executions.
    """
    abilities: Callable[[], Awaitable[AbilityExecutor]]
    """Executor for abilities. Raises StoreError and VaultError."""


class RuntimeServices(Protocol):
    """Services of a runtime process. Each is opened on first use and belongs to one event loop."""

    @property
    def settings(self) -> Settings:
        """Settings of this process. Raises SettingError."""

    @property
    def tracer(self) -> Tracer | None:
        """Tracer that exports the spans of runs. None if traces are not configured."""

    def http_client(self) -> FetchClient:
        """Returns the HTTP client for steps. Raises SettingError."""

    async def for_steps(self, egress_allow: tuple[str, ...]) -> StepServices:
        """Returns the services for runs with these additional egress rules. Raises HutchError."""
