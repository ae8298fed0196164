"""Makes an `App` a front or a worker of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hutch._version import __version__
from hutch.cluster.connection import ClusterConnection, check_settings
from hutch.cluster.front import Front
from hutch.cluster.gateway_relay import RelayedGateway
from hutch.cluster.messages import OpenPackage, OpenScript
from hutch.cluster.node import Node
from hutch.cluster.worker import MadeProfile, ProfileMaker, Worker, WorkerTraits
from hutch.kernel.durable.checkpoint import bundle_digest
from hutch.npm.package_spec import PackageSpec
from hutch.sandbox.runner.profile import Profile

if TYPE_CHECKING:
    from hutch.app.app import App

FIRST_WORKER_SECONDS = 1.5
"""Time for which a starting front waits for the announcement of a worker."""


async def open_front(app: App) -> Front:
    """Connects to the cluster and places the executions of `app` on its workers. Raises
    ClusterUnavailable.
    """
    settings = app.settings
    check_settings(settings)
    connection = await ClusterConnection.open(settings, "hutch front")
    front = Front(Node(settings, connection, __version__), app.pool, bundle_digest())
    await front.start()
    await front.wait_for_worker(FIRST_WORKER_SECONDS)
    app.kernel.placement = front.placement
    app.kernel.precompiles = settings.cluster_local
    return front


async def open_worker(app: App, version: str = __version__) -> tuple[Worker, ClusterConnection]:
    """Connects to the cluster and serves the runners of `app`. Raises ClusterUnavailable."""
    settings = app.settings
    check_settings(settings)
    connection = await ClusterConnection.open(settings, "hutch worker")

    async def package(request: OpenPackage) -> MadeProfile:
        spec = PackageSpec(request.name, request.version)
        return await app.tools.profile_for_front(spec, request.op, request.env, request.caller, request.tool)

    async def script(request: OpenScript, gateway: RelayedGateway) -> Profile:
        return await app.scripts.profile(request.cwd, gateway)

    traits = WorkerTraits(isolation=app.verdict.isolation, bundle=bundle_digest())
    node = Node(settings, connection, version)
    worker = Worker(node, app.pool, ProfileMaker(package, script), traits)
    await worker.start()
    return worker, connection
