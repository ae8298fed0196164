"""Services for the steps of flows. Each service is opened when a step first needs it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hutch.cli.support.event_loop import ONE_SHOT_SETTINGS
from hutch.cli.support.project import load_project_settings, project_servers
from hutch.protocols.rep.runtime.context import StepServices
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.app.app import App
    from hutch.egress.client.client import FetchClient
    from hutch.telemetry.tracer import Tracer


class ProcessServices:
    """Services of a runtime process. They belong to the event loop that opens them."""

    def __init__(self, project: Path | None = None, tracer: Tracer | None = None) -> None:
        """Uses the trusted files of the folder `project`, if given. Closes `tracer` at the end."""
        self._project = project
        self.tracer = tracer
        self._apps: dict[tuple[str, ...], asyncio.Task[App]] = {}
        self._http_client: FetchClient | None = None

    @cached_property
    def settings(self) -> Settings:
        """Settings of this process. Raises SettingError."""
        return load_project_settings(ONE_SHOT_SETTINGS, self._project)

    def http_client(self) -> FetchClient:
        if self._http_client is None:
            from hutch.egress.client.client import FetchClient

            self._http_client = FetchClient(self.settings)
        return self._http_client

    async def for_steps(self, egress_allow: tuple[str, ...]) -> StepServices:
        """Returns the services for a run. Runs with the same egress rules share one `App`. If the `App` could
        not be started for an earlier run, tries again.
        """
        creating = self._apps.get(egress_allow)
        if creating is None or (creating.done() and (creating.cancelled() or creating.exception())):
            creating = self._apps[egress_allow] = asyncio.create_task(self._create(egress_allow))
        # Shield the task, because other runs may wait for it.
        return _step_services(await asyncio.shield(creating))

    async def _create(self, egress_allow: tuple[str, ...]) -> App:
        from hutch.app.app import App

        settings = self.settings
        if egress_allow:
            rules = (*settings.egress_allow, *egress_allow)
            settings = msgspec.structs.replace(settings, egress_allow=rules)
        servers = project_servers(settings, self._project)
        app = await App.create(settings, project_servers=servers, tracer=self.tracer)
        app.kernel.fair_use.is_counting = False
        try:
            await app.join_cluster()
        except BaseException:
            await app.close()
            raise
        return app

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            if self.tracer is not None:
                stack.push_async_callback(self.tracer.close)
            if self._http_client is not None:
                stack.push_async_callback(self._http_client.close)
            for creating in self._apps.values():
                creating.cancel()
                await asyncio.wait((creating,))
                if not creating.cancelled() and creating.exception() is None:
                    stack.push_async_callback(creating.result().close)


def _step_services(app: App) -> StepServices:
    return StepServices(
        kernel=app.kernel,
        jail=app.jail,
        tools=lambda: app.tools,
        gateway=lambda: app.gateway,
        scripts=lambda: app.scripts,
        script_gateway=lambda: app.script_gateway,
        store=app.storage.store,
        suspended_runs=app.suspend_steps,
        abilities=app.storage.abilities,
    )
