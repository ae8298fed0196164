"""Interfaces of the components that the MCP server uses. `hutch.app.app.App` implements them."""

from __future__ import annotations

from typing import Protocol

from hutch.kernel.durable.stored_values import StoredValues
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.kernel.kernel import Kernel
from hutch.kernel.sessions.sessions import Sessions
from hutch.protocols.toolscript.durable.durable_scripts import DurableScripts
from hutch.protocols.toolscript.execute import ScriptGateway, ScriptRequest, ScriptResult
from hutch.protocols.toolscript.gateway.gateway import Gateway
from hutch.settings import Settings
from hutch.store.store import Store
from hutch.telemetry.tracer import Tracer

# Key in the ASGI scope under which the MCP endpoint passes the authenticated caller to the MCP server.
CALLER = "hutch.caller"


class ScriptStarter(Protocol):
    """Runs toolscripts. Implemented by `hutch.protocols.toolscript.execute.ScriptRunner`."""

    async def run(self, request: ScriptRequest, gateway: ScriptGateway) -> ScriptResult: ...


class OpensStore(Protocol):
    """Opens the store on first use. Implemented by `hutch.app.storage.Storage`."""

    async def store(self) -> Store: ...


class McpServices(Protocol):
    """Runs code and provides the tools that the code may call."""

    @property
    def settings(self) -> Settings: ...
    @property
    def kernel(self) -> Kernel: ...
    @property
    def gateway(self) -> Gateway: ...
    @property
    def scripts(self) -> ScriptStarter: ...
    @property
    def script_gateway(self) -> ScriptGateway: ...
    @property
    def suspended_runs(self) -> SuspendedRuns: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def values(self) -> StoredValues: ...
    @property
    def durable_scripts(self) -> DurableScripts | None: ...
    @property
    def storage(self) -> OpensStore: ...
    @property
    def tracer(self) -> Tracer | None: ...
