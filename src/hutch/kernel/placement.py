"""Interface of the kernel to other machines: recipes of profiles, and the placement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from hutch.kernel.execution import Execution
    from hutch.sandbox.pool.lease import Lease
    from hutch.sandbox.runner.profile import Profile


class PackageDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A package as it is installed on the worker that runs its tool."""

    name: str
    version: str
    install_ms: float = 0.0
    health_check: Any = None
    """Result of reading the package's health check: the check and a problem. Only if it was asked for."""


class PackageRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """Data from which another machine makes the profile of an npm tool. It installs the package itself."""

    name: str
    version: str
    """Exact version, range or tag."""
    env: dict[str, str] = {}
    caller: str = ""
    tool: str = ""
    op: str = "execute"
    on_details: Callable[[PackageDetails], None] | None = None


class ScriptRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """Data from which another machine makes the profile of a toolscript. The gateway stays here."""

    url: str
    revision: str
    cwd: str
    handler: Any
    """The gateway: handles the requests of the script's jail, see `ScriptGateway.handle`."""


Recipe = PackageRecipe | ScriptRecipe


class ClusterLoad(msgspec.Struct, frozen=True):
    """Places of a cluster as one front sees them, by kind of place."""

    wanted: dict[str, int]
    """Executions of this front that run or wait."""
    places: dict[str, int]
    """Places of all usable workers."""
    workers: int


class Placement(Protocol):
    """Decides whether an execution runs here or on another machine."""

    def lease(self, execution: Execution, run_id: str) -> Lease:
        """Returns a lease of a runner, like `Pool.lease`. Entering it chooses the machine."""

    def has_workers(self, profile: Profile) -> bool:
        """Returns True if another machine can run executions of this engine."""
