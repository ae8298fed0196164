"""Gateway endpoints for scripts and HTTP clients, independent of the HTTP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote_to_bytes

from hutch.errors import UpstreamError
from hutch.http.errors import ApiError
from hutch.http.requests import query_flag, query_number
from hutch.protocols.toolscript.gateway.catalog import Catalog
from hutch.protocols.toolscript.gateway.gateway import SEARCH_LIMIT, SEARCH_THRESHOLD, Gateway
from hutch.protocols.toolscript.gateway.schemas import (
    GatewayReply,
    encode_search_result,
    encode_tool,
    json_reply,
    text_reply,
    tool_error_reply,
)
from hutch.session.json_value import NotJsonSafe, encode_value

MAX_RESULTS = 100

Params = Mapping[str, str]
GatewayEndpoint = Callable[[Params, str], Awaitable[GatewayReply]]
"""Handler that gets the query parameters and the value of If-None-Match. Raises ApiError."""


class GatewayEndpoints:
    """Endpoints that every client of the gateway may use, including scripts."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.by_path: dict[str, GatewayEndpoint] = {
            "/servers": self._servers,
            "/tools": self._tools,
            "/search": self._search,
            "/search/stats": self._stats,
            "/runtime/tools.ts": self._module,
            "/runtime/tools.d.ts": self._declarations,
        }
        self._listed: tuple[Catalog, dict[str, bytes]] | None = None

    # --- status ---

    def health(self, *, draining: bool = False) -> GatewayReply:
        body = {**self.gateway.health(), **({"status": "draining"} if draining else {})}
        return json_reply(body, 503 if draining else 200)

    def ready(self, *, draining: bool = False, has_names: bool = True) -> GatewayReply:
        """With `has_names`, the response lists the names of the servers that are being connected. Otherwise
        it contains only their number.
        """
        connecting = self.gateway.connecting()
        ready = not connecting and not draining
        body = {"ready": ready, "connecting": connecting if has_names else len(connecting)}
        return json_reply(body, 200 if ready else 503)

    # --- tools ---

    async def _servers(self, params: Params, etag: str) -> GatewayReply:
        return json_reply(
            [
                {"name": server.name, "title": server.title, "instructions": server.instructions}
                for server in self.gateway.servers()
            ]
        )

    async def _tools(self, params: Params, etag: str) -> GatewayReply:
        catalog = await self.gateway.catalog()
        if self._listed is None or self._listed[0] is not catalog:
            self._listed = (catalog, {entry.qualified: encode_tool(entry) for entry in catalog})
        listed = self._listed[1]
        chosen = catalog.filtered(params.get("filter"))
        return GatewayReply(200, b"[" + b",".join(listed[entry.qualified] for entry in chosen) + b"]")

    async def _module(self, params: Params, etag: str) -> GatewayReply:
        if query_flag(params, "compact"):
            return await self._declarations(params, etag)
        return text_reply(await self.gateway.module(params.get("filter")), etag)

    async def _declarations(self, params: Params, etag: str) -> GatewayReply:
        compact = query_flag(params, "compact")
        return text_reply(await self.gateway.declarations(params.get("filter"), compact=compact), etag)

    # --- search ---

    async def _search(self, params: Params, etag: str) -> GatewayReply:
        query = params.get("q", "").strip()
        if not query:
            raise ApiError("invalid_request", "q: expected a search query")
        limit = query_number(params, "limit", SEARCH_LIMIT, MAX_RESULTS, minimum=1)
        threshold = query_number(params, "threshold", SEARCH_THRESHOLD, 1)
        results = await self.gateway.search(query, limit=int(limit), threshold=threshold)
        return GatewayReply(200, b"[" + b",".join(map(encode_search_result, results)) + b"]")

    async def _stats(self, params: Params, etag: str) -> GatewayReply:
        return json_reply(await self.gateway.stats())

    # --- calls ---

    async def call(self, name: str, arguments: dict[str, Any], run: str | None) -> GatewayReply:
        """Calls a tool by its qualified name. `run` is the id of the calling run."""
        server, _, tool = name.partition("__")
        try:
            return GatewayReply(200, encode_value(await self.gateway.call_by_name(name, arguments, run=run)))
        except UpstreamError as error:
            return tool_error_reply(error)
        except NotJsonSafe as error:
            message = f"The result of {name} cannot be written as JSON: {error}"
            return tool_error_reply(UpstreamError(server, tool, message, kind="invalid_result"))


@contextmanager
def naming_tool(name: str) -> Iterator[None]:
    """Adds the fields of a tool error to an ApiError."""
    try:
        yield
    except ApiError as error:
        server, _, tool = name.partition("__")
        error.extra = {"server": server, "tool": tool, "details": None}
        raise


def tool_name(raw_path: bytes) -> str:
    """Returns the tool name from the raw path. The raw path is needed because a name may contain slashes."""
    _, _, name = raw_path.partition(b"?")[0].partition(b"/tools/")
    return unquote_to_bytes(name.lstrip(b"/")).decode(errors="replace")
