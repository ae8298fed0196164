"""A server's tools: all pages of them, those that are wanted, each only once."""

from __future__ import annotations

from typing import Any

import msgspec
from mcp.client.session import ClientSession
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.types import ListToolsResult, PaginatedRequestParams, Tool
from pydantic import ValidationError

from hutch.upstream.bounds import Bounds
from hutch.upstream.entries import ServerConfig
from hutch.upstream.explain import text
from hutch.upstream.failures import Unreachable
from hutch.upstream.tools import UpstreamTool

MAX_NAME = 256
MAX_WARNINGS = 20


class Listing(msgspec.Struct):
    """Tools by name, and what was odd about them."""

    tools: dict[str, UpstreamTool] = {}
    warnings: tuple[str, ...] = ()


async def fetch(
    config: ServerConfig, session: ClientSession, dispatcher: JSONRPCDispatcher, bounds: Bounds
) -> Listing:
    """Raises what the session does, and Unreachable when there is no end of them."""
    tools: dict[str, UpstreamTool] = {}
    warnings: list[str] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(bounds.pages):
        found, cursor = await _page(session, dispatcher, cursor, warnings)
        for tool in found:
            _add(config, tool, tools, warnings)
        if len(tools) > bounds.tools:
            raise Unreachable(f"it has more than {bounds.tools} tools")
        if cursor is None:
            return Listing(tools, some((*warnings, *_unmatched(config, tools))))
        if cursor in seen:
            break
        seen.add(cursor)
    raise Unreachable(f"its list of tools has no end ({len(seen)} pages)")


async def _page(
    session: ClientSession, dispatcher: JSONRPCDispatcher, cursor: str | None, warnings: list[str]
) -> tuple[list[Tool], str | None]:
    try:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
    except ValidationError:
        return await _page_by_parts(session, dispatcher, cursor, warnings)
    return page.tools, page.next_cursor


async def _page_by_parts(
    session: ClientSession, dispatcher: JSONRPCDispatcher, cursor: str | None, warnings: list[str]
) -> tuple[list[Tool], str | None]:
    """One tool that is described wrong does not cost all the others."""
    headers = {"mcp-protocol-version": session.protocol_version or ""}
    params = None if cursor is None else {"cursor": cursor}
    raw = await dispatcher.send_raw_request("tools/list", params, {"headers": headers})
    entries: Any = raw.get("tools")
    tools: list[Tool] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        try:
            tools.append(Tool.model_validate(entry, by_name=False))
        except ValidationError as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            called = repr(name[:80]) if isinstance(name, str) else f"number {number + 1}"
            warnings.append(f"the tool {called} is left out: {text(error)}")
    # What is wrong with the rest is told as ever.
    page = ListToolsResult.model_validate({**raw, "tools": []}, by_name=False)
    return tools, page.next_cursor


def _add(config: ServerConfig, tool: Tool, tools: dict[str, UpstreamTool], warnings: list[str]) -> None:
    if not config.offers(tool.name):
        return
    if not tool.name or len(tool.name) > MAX_NAME:
        warnings.append(f"a tool is left out: its name has {len(tool.name)} characters")
    elif tool.name in tools:
        warnings.append(f"the tool {tool.name!r} is listed twice; the first counts")
    else:
        annotations = tool.annotations
        tools[tool.name] = UpstreamTool(
            server=config.name,
            name=tool.name,
            title=tool.title,
            description=tool.description,
            input_schema=tool.input_schema,
            output_schema=tool.output_schema,
            annotations=None
            if annotations is None
            else annotations.model_dump(by_alias=True, exclude_none=True),
        )


def _unmatched(config: ServerConfig, tools: dict[str, UpstreamTool]) -> list[str]:
    wanted = [each for each in config.include or () if "*" not in each and config.offers(each)]
    return [f"includeTools names {each!r}, which it does not have" for each in wanted if each not in tools]


def some(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """As many as anybody would read."""
    more = len(warnings) - MAX_WARNINGS
    return warnings if more <= 0 else (*warnings[:MAX_WARNINGS], f"and {more} more like these")
