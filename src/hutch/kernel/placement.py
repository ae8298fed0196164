"""Interfaces for executions on other machines: recipes of profiles, and the placement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from hutch.kernel.execution import Execution
    from hutch.sandbox.pool.lease import Lease
    from hutch.sandbox.runner.profile import Profile


class PackageDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of a package on the worker that has installed it."""

    name: str
    version: str
    install_ms: float = 0.0
    health_check: Any = None
    """The package's health check and the problem of reading it. None if the front did not ask for the health
    check.
    """


class PackageRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions for another machine to make the profile of an npm tool. That machine installs the package
    itself.
    """

    name: str
    version: str
    """Exact version, range or tag."""
    env: dict[str, str] = {}
    caller: str = ""
    tool: str = ""
    op: str = "execute"
    on_details: Callable[[PackageDetails], None] | None = None


class ScriptRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions for another machine to make the profile of a toolscript. The gateway stays on this
    machine.
    """

    url: str
    revision: str
    cwd: str
    handler: Any
    """The gateway: handles the requests of the script's jail, see `ScriptGateway.handle`."""


Recipe = PackageRecipe | ScriptRecipe


class ClusterLoad(msgspec.Struct, frozen=True):
    """Number of wanted and existing places of a cluster, by kind of place, as known to one front."""

    wanted: dict[str, int]
    """Executions of this front that run or wait."""
    places: dict[str, int]
    """Places of all usable workers."""
    workers: int


class Placement(Protocol):
    """Decides whether an execution runs here or on another machine."""

    def lease(self, execution: Execution, run_id: str) -> Lease:
        """Returns a lease of a runner, like `Pool.lease`. The machine is chosen when the lease is entered."""

    def has_workers(self, profile: Profile) -> bool:
        """Returns True if another machine can run executions of this engine."""
