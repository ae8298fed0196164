"""HTTP routes of a server: those of all protocols, and of the web console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from hutch.app import openapi
from hutch.console import routes as console
from hutch.console.tool_catalog import ToolCatalogServices
from hutch.http import health, responses
from hutch.http.endpoint import public_json_route
from hutch.protocols.abilities import routes as abilities
from hutch.protocols.abilities.queued_ability import QueuedAbility
from hutch.protocols.execbox import routes as execbox
from hutch.protocols.queue import routes as queue
from hutch.protocols.rep.runtime import lease
from hutch.protocols.rep.server import routes as rep
from hutch.protocols.rep.server.queued_flow import QueuedFlow
from hutch.protocols.runs import routes as runs
from hutch.protocols.toolscript.gateway import routes as toolscript
from hutch.protocols.toolscript.queued_script import QueuedScript
from hutch.protocols.tpmjs import routes as tpmjs
from hutch.protocols.tpmjs.health_check import listed_tools
from hutch.protocols.tpmjs.queued_tool import QueuedTool

if TYPE_CHECKING:
    from hutch.app.app import App
    from hutch.http.auth import AccessControl
    from hutch.protocols.mcp.http import McpEndpoint


def web_app(
    app: App, mcp: McpEndpoint, access: AccessControl, setting_sources: Mapping[str, str]
) -> Starlette:
    """Connects the components of `app` with the routes. `setting_sources`: see `App.http_app`."""
    shown = console.ConsoleServices(
        settings=app.settings,
        setting_sources=setting_sources,
        verdict=app.verdict,
        load=app.load_history,
        storage=app.storage,
        catalog=ToolCatalogServices(
            packages=lambda: app.packages,
            listed_tools=listed_tools,
            count_spares=lambda package: app.pool.count_warm(str(package.tree)),
            storage=app.storage,
        ),
        fair_use=app.kernel.fair_use,
        check_code=app.check_code,
    )
    flow_handlers = rep.FlowHandlers(app.flows, access, app.kernel.fair_use)
    for handler in (
        QueuedTool(app.tools),
        QueuedScript(
            lambda: app.scripts,
            lambda: app.script_gateway,
            app.settings.max_code_bytes,
            lambda: app.durable_scripts,
        ),
        QueuedAbility(app.storage.store, app.storage.abilities),
        QueuedFlow(app.flows, flow_handlers.starter, app.kernel.fair_use),
    ):
        app.queue.add_handler(handler)
    web = Starlette(
        routes=[
            *health.routes(app, access),
            public_json_route("/openapi.json", openapi.document(app.settings), access),
            *console.routes(shown, access),
            *execbox.routes(app.kernel, access, app.mcp_tools, app.suspended_runs, app.sessions, app.queue),
            *toolscript.routes(app.gateway, access, app.settings),
            *mcp.routes(),
            *abilities.routes(app.storage, access),
            *rep.routes(flow_handlers, access),
            *runs.routes(
                app.kernel,
                app.storage.store,
                flow_handlers,
                lease.run_state,
                app.gateway_tools,
                access,
                app.suspended_runs,
                app.queue,
            ),
            *queue.routes(app.queue, access, app.settings),
            *tpmjs.routes(
                app.tools,
                access,
                app.settings,
                app.verdict,
                app.verdict.deno,
                app.queue if app.storage.can_store else None,
            ),
        ],
        exception_handlers={
            HTTPException: responses.on_http_exception,
            Exception: responses.on_internal_error,
        },
    )
    web.router.default = responses.not_found_app
    web.router.redirect_slashes = False
    return web
