"""All MCP servers of one event loop, their tools, and calls of these tools."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import msgspec

from hutch.errors import UpstreamError
from hutch.mcp_client.config import McpConfig
from hutch.mcp_client.limits import ServerLimits
from hutch.mcp_client.server import McpServer
from hutch.mcp_client.tools import McpTool, ServerStatus, combined_digest
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.mcp_client.tool_requests import AskForInput, ProgressCallback
    from hutch.vault.tokens import Tokens

logger = logging.getLogger("hutch.mcp_client")


class McpServers:
    """The configured servers. Belongs to the event loop that creates it, and must be closed before the loop
    ends.
    """

    def __init__(
        self,
        config: McpConfig,
        settings: Settings,
        *,
        tokens: Tokens | None = None,
        environ: Mapping[str, str] | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Creates the servers without connecting. `tokens` stores the OAuth logins. stdio servers inherit
        some variables of `environ`.
        """
        self.on_change: list[Callable[[], None]] = []
        """Callbacks that are called after every change of `revision`."""
        self._start = secrets.token_hex(8)
        self._digest = combined_digest({})
        self._by_name = {
            name: McpServer(
                server,
                environ=os.environ if environ is None else environ,
                limits=limits or ServerLimits(),
                max_message_bytes=settings.max_line_bytes,
                tokens=tokens,
                on_change=self._changed,
            )
            for name, server in config.servers.items()
        }

    async def start(self, *, eager: bool = True) -> None:
        """Connects to all servers if `eager`, and returns when each server is connected or has failed.

        Without `eager`, a server is connected when its tools are listed or called for the first time.
        """
        if eager:
            await asyncio.gather(*(server.ensure_tried() for server in self._by_name.values()))

    async def close(self) -> None:
        """Closes every connection and ends every server process."""
        await asyncio.gather(*(server.close() for server in self._by_name.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def revision(self) -> str:
        """Version of the tool list. It changes whenever a tool or its schema changes, and whenever this
        process starts.
        """
        return f"{self._start}-{self._digest}"

    def servers(self) -> list[ServerStatus]:
        """Returns the status of each server in the order of the configuration."""
        return [server.status for server in self._by_name.values()]

    async def tools(self) -> list[McpTool]:
        """Returns the tools of all servers. Waits for the first connection attempt of each server. Servers
        that could not be connected have no tools.
        """
        await self.start(eager=True)
        return [tool for server in self._by_name.values() for tool in server.tools.values()]

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None = None,
        on_progress: ProgressCallback | None = None,
        whole: bool = False,
        on_input: AskForInput | None = None,
    ) -> Any:
        """Calls a tool and returns the value of `unwrap_result`, or an McpToolResult if `whole`.

        Connects if necessary. `timeout` is in seconds and includes connecting, but not the time that
        `on_input` needs to answer questions of the tool. If cancelled, notifies the server. Raises
        UpstreamError.
        """
        connected = self._server(server)
        values = {} if arguments is None else arguments
        _check_arguments(server, tool, values)
        return await connected.call(tool, dict(values), timeout, on_progress, whole=whole, on_input=on_input)

    def _server(self, name: str) -> McpServer:
        server = self._by_name.get(name)
        if server is None:
            known = ", ".join(self._by_name) or "none"
            message = f"there is no server {name[:100]!r}; configured: {known}"
            raise UpstreamError(name, None, message, kind="unknown_server")
        return server

    def _changed(self) -> None:
        digest = combined_digest({name: server.digest for name, server in self._by_name.items()})
        if digest == self._digest:
            return
        self._digest = digest
        for listener in list(self.on_change):
            try:
                listener()
            except Exception:
                # Only log the error, because it must not affect the other callbacks.
                logger.exception("a listener for tool changes failed")


def _check_arguments(server: str, tool: str, arguments: object) -> None:
    """Raises UpstreamError if the arguments are not JSON, because sending them would end the whole
    connection.
    """
    if not isinstance(arguments, Mapping):
        kind = "a list" if isinstance(arguments, list) else type(arguments).__name__
        message = f"expected an object of arguments, got {kind}"
        raise UpstreamError(server, tool, message, kind="invalid_arguments")
    try:
        msgspec.json.encode(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the arguments cannot be written as JSON: {error}"
        raise UpstreamError(server, tool, message, kind="invalid_arguments") from None
