"""All MCP servers of one event loop: their tools as one set, and calls to any of them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from hutch.errors import InvalidTool, ToolError, UpstreamError
from hutch.session.jsonvalue import NotJsonSafe, encode_value
from hutch.session.names import check_namespace, safe_names
from hutch.session.providers import Provider
from hutch.session.tools import Tool, ToolContext
from hutch.settings import Settings
from hutch.upstream.bounds import Bounds
from hutch.upstream.entries import Config
from hutch.upstream.tools import Server, UpstreamTool, digest
from hutch.upstream.upstream import Upstream

if TYPE_CHECKING:
    from hutch.upstream.connection import Progress
    from hutch.vault.tokens import Tokens

logger = logging.getLogger("hutch.upstream")


class Upstreams:
    """The servers of a configuration. Belongs to the event loop that makes it; close it before that ends."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        *,
        tokens: Tokens | None = None,
        environ: Mapping[str, str] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """`tokens` are those of servers that want a login; `environ` is what programs get a little of."""
        self.on_change: list[Callable[[], None]] = []
        """Called whenever `revision` has changed."""
        self._start = secrets.token_hex(8)
        self._digest = digest(())
        self._by_name = {
            name: Upstream(
                server,
                environ=os.environ if environ is None else environ,
                bounds=bounds or Bounds(),
                limit=settings.max_line_bytes,
                tokens=tokens,
                on_change=self._changed,
            )
            for name, server in config.servers.items()
        }

    async def start(self, *, eager: bool = True) -> None:
        """Eager: connects to all at the same time, and returns when each is connected or has failed.

        Otherwise each is connected when its tools are asked for, or when it is called.
        """
        if eager:
            await asyncio.gather(*(each.known() for each in self._by_name.values()))

    async def close(self) -> None:
        """Ends every connection, and every process that was started for one."""
        await asyncio.gather(*(each.close() for each in self._by_name.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def revision(self) -> str:
        """Another text whenever the tools or a schema of one are others, and at each start."""
        return f"{self._start}-{self._digest}"

    def servers(self) -> list[Server]:
        """How it stands with each, in the order of the configuration."""
        return [each.server for each in self._by_name.values()]

    async def tools(self) -> list[UpstreamTool]:
        """The tools of all servers. Waits for those that were not tried yet; those that failed have none."""
        await self.start(eager=True)
        return [tool for each in self._by_name.values() for tool in each.tools.values()]

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> Any:
        """What the tool gives, without the protocol's wrapping: see results.py.

        Connects if need be; `timeout`, in seconds, includes that. Cancelled, it tells the server so.
        Raises UpstreamError.
        """
        upstream = self._find(server)
        given = {} if arguments is None else arguments
        _check(server, tool, given)
        return await upstream.call(tool, dict(given), timeout, on_progress)

    def provider(self, server: str) -> Provider:
        """The tools of a server that are known by now, to be lent to a guest. Raises UpstreamError."""
        upstream = self._find(server)
        lent = [
            Tool(
                tool.name,
                partial(self._lend, server, tool.name),
                description=tool.description,
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
            )
            for tool in upstream.tools.values()
        ]
        return Provider.of(*lent, name=self._namespaces()[server])

    def _find(self, server: str) -> Upstream:
        found = self._by_name.get(server)
        if found is None:
            known = ", ".join(self._by_name) or "none is configured"
            message = f"there is no server {server[:100]!r}; there is: {known}"
            raise UpstreamError(server, None, message, kind="unknown_server")
        return found

    def _namespaces(self) -> dict[str, str]:
        """A guest's name for every server, no two the same."""
        return {original: _bindable(safe) for safe, original in safe_names(self._by_name).items()}

    async def _lend(self, server: str, tool: str, value: Any, _: ToolContext) -> bytes:
        try:
            return encode_value(await self.call(server, tool, value))
        except UpstreamError as error:
            code = "validation_error" if error.kind == "invalid_arguments" else "tool_error"
            raise ToolError(error.message, code) from error
        except NotJsonSafe as error:
            raise ToolError(f"Tool {tool} returned what cannot be passed on: {error}", "tool_error") from None

    def _changed(self) -> None:
        found = digest(tool for each in self._by_name.values() for tool in each.tools.values())
        if found == self._digest:
            return
        self._digest = found
        for told in list(self.on_change):
            try:
                told()
            except Exception:
                # One who listens badly does not cost the others their server.
                logger.exception("a listener to changes failed")


def _check(server: str, tool: str, arguments: object) -> None:
    """What cannot be written as JSON would end the connection instead of the call."""
    if not isinstance(arguments, Mapping):
        kind = "a list" if isinstance(arguments, list) else type(arguments).__name__
        message = f"expected an object of arguments, got {kind}"
        raise UpstreamError(server, tool, message, kind="invalid_arguments")
    try:
        msgspec.json.encode(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the arguments cannot be written as JSON: {error}"
        raise UpstreamError(server, tool, message, kind="invalid_arguments") from None


def _bindable(name: str) -> str:
    try:
        check_namespace(name)
    except InvalidTool:
        return f"{name}_"
    return name
