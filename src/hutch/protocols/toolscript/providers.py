"""Providers of the tools of MCP servers, for code that is not a toolscript."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hutch.errors import ConfigError, InvalidExecution, ToolError, UpstreamError
from hutch.protocols.toolscript.gateway.approvals import ApprovalPolicy, Approvals, check_size
from hutch.protocols.toolscript.gateway.catalog import Catalog, CatalogEntry
from hutch.protocols.toolscript.gateway.gateway import Gateway
from hutch.protocols.toolscript.gateway.stored_approvals import suspend_until_approved
from hutch.session.json_value import NotJsonSafe
from hutch.session.large_json import encode_large_value
from hutch.session.tools.names import is_identifier, safe_name
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import Tool, ToolContext

if TYPE_CHECKING:
    from hutch.mcp_client.servers import McpServers
    from hutch.settings import Settings
    from hutch.settings.config_text import ConfigText

# Namespace of the tools of MCP servers, with one member for each server.
PARENT = "tools"
MAX_CONFIGURATIONS = 16


def tool_providers(
    catalog: Catalog, gateway: Gateway, servers: Collection[str] | None = None
) -> list[Provider]:
    """Returns a provider for each MCP server, with the names that toolscripts use. `servers` are the names of
    the servers, None for all.

    The catalog must belong to the gateway. Calls go through the gateway and are subject to its approval
    policy.
    """
    providers = _providers.get(catalog)
    if providers is None:
        providers = _providers[catalog] = _build_providers(catalog, gateway)
    return [provider for server, provider in providers if servers is None or server in servers]


def unavailable_servers(gateway: Gateway) -> dict[str, str]:
    """Returns the reasons why servers are not connected, by server name. Show them only to the operator, not
    to scripts.
    """
    return {
        server.name: " ".join((server.error or "").split())
        for server in gateway.servers()
        if server.state == "failed" or (server.state == "connecting" and server.was_tried)
    }


# Cache, because building the providers of hundreds of tools takes longer than most executions.
_providers: WeakKeyDictionary[Catalog, list[tuple[str, Provider]]] = WeakKeyDictionary()


def _build_providers(catalog: Catalog, gateway: Gateway) -> list[tuple[str, Provider]]:
    """Returns the names of the servers with their providers."""

    async def call(entry: CatalogEntry, value: Any, context: ToolContext) -> bytes:
        return await _call_tool(gateway, entry, value, context)

    providers: dict[str, tuple[str, Provider]] = {}
    for server, entries in groupby(catalog, lambda entry: entry.server):
        tools: dict[str, Tool] = {}
        namespace = ""
        for entry in entries:
            namespace = entry.namespace
            name = entry.member if is_identifier(entry.member) else safe_name(entry.member)
            tools[_free_name(name, tools)] = Tool(
                entry.tool,
                partial(call, entry),
                description=entry.description,
                input_schema=entry.input_schema,
                output_schema=entry.output_schema,
                idempotent=entry.idempotent,
            )
        name = namespace if is_identifier(namespace) else safe_name(namespace)
        name = _free_name(name, providers)
        providers[name] = server, Provider(name, tools, parent=PARENT)
    return list(providers.values())


async def _call_tool(gateway: Gateway, entry: CatalogEntry, value: Any, context: ToolContext) -> bytes:
    arguments = {} if value is None else value
    if not isinstance(arguments, dict):
        kind = "a list" if isinstance(arguments, list) else type(arguments).__name__
        raise ToolError(f"Expected an object of arguments, got {kind}", "validation_error")
    stored = gateway.stored_approvals
    try:
        if stored is not None and stored.is_needed(entry.server, entry.tool, context):
            await check_size(entry.server, entry.tool, arguments)
            raise suspend_until_approved(entry.server, entry.tool, arguments)
        value = await gateway.call(entry.server, entry.tool, arguments, run=context.run_id)
        return await encode_large_value(value)
    except UpstreamError as error:
        code = "validation_error" if error.kind == "invalid_arguments" else "tool_error"
        raise ToolError(error.message, code) from error
    except NotJsonSafe as error:
        raise ToolError(f"The result of {entry.qualified} cannot be passed on: {error}") from None


def _free_name(name: str, taken: dict[str, Any]) -> str:
    while name in taken:
        name += "_"
    return name


class McpConfigurations:
    """Connected MCP servers of all configurations used so far. They stay connected until `close`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: dict[bytes, tuple[McpServers, Gateway]] = {}

    async def providers(self, mcp: str | Path | Mapping[str, Any]) -> tuple[list[Provider], dict[str, str]]:
        """Connects to the servers of a configuration, which is given as a file or as its content. Returns the
        tools of these servers, and the reasons why servers cannot be reached, by server name.

        Raises ConfigError if the configuration is invalid.
        """
        source = _config_text(mcp)
        key = bytes(source.path) + b"\0" + source.data
        if key not in self._opened:
            if len(self._opened) >= MAX_CONFIGURATIONS:
                raise InvalidExecution(
                    "mcp",
                    f"expected at most {MAX_CONFIGURATIONS} different configurations for one Hutch, got more",
                )
            try:
                self._opened[key] = self._open(source)
            except ConfigError as error:
                if isinstance(mcp, Mapping):
                    # Omit the position, because the configuration does not come from a file.
                    raise error.without_position("mcp") from None
                raise
        _, gateway = self._opened[key]
        providers = tool_providers(await gateway.catalog(), gateway)
        return providers, unavailable_servers(gateway)

    def _open(self, source: ConfigText) -> tuple[McpServers, Gateway]:
        from hutch.mcp_client.config_file import load_config
        from hutch.mcp_client.servers import McpServers
        from hutch.vault.tokens import Tokens

        settings = self._settings
        tokens = Tokens.at(settings.home_path, os.environ)
        servers = McpServers(load_config(sources=[source]), settings, tokens=tokens)
        return servers, Gateway(servers, Approvals(ApprovalPolicy(settings.approvals)))

    async def close(self) -> None:
        opened, self._opened = self._opened, {}
        for servers, _ in opened.values():
            await servers.close()


def _config_text(mcp: str | Path | Mapping[str, Any]) -> ConfigText:
    from hutch.mcp_client.config_file import SERVERS_KEY, read_source
    from hutch.settings.config_text import ConfigText

    if isinstance(mcp, str | Path):
        return read_source(Path(mcp).expanduser())
    if not isinstance(mcp, Mapping):
        raise InvalidExecution("mcp", f"expected a path or a dict, got {type(mcp).__name__}")
    document = mcp if SERVERS_KEY in mcp else {SERVERS_KEY: mcp}
    try:
        data = json.dumps(document, indent=2, default=dict).encode()
    except (TypeError, ValueError) as error:
        raise InvalidExecution("mcp", f"expected JSON values: {error}") from None
    # Use a path in the current directory, because programs start there unless their entry has a `cwd`.
    return ConfigText(Path.cwd() / "mcp", data)
