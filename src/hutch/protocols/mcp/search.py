"""Searches and describes tools for a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from mcp.types import CallToolResult

from hutch.protocols.mcp.arguments import DescribeTools, SearchTools
from hutch.protocols.mcp.results import MAX_CHARS, clip, structured_result, text_result
from hutch.protocols.toolscript.codegen.module import signature
from hutch.protocols.toolscript.gateway.catalog import Catalog, filter_items
from hutch.protocols.toolscript.gateway.gateway import Gateway
from hutch.protocols.toolscript.gateway.search.index import SearchResult, similar_names

_MAX_DESCRIPTION = 400
_MAX_UNKNOWN_NAMES = 20
_MAX_SIGNATURE = 1_000


class FoundTool(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    server: str
    tool: str
    description: str
    signature: str
    score: float | None = None
    reason: str = ""


class FoundTools(msgspec.Struct, frozen=True):
    tools: list[FoundTool]
    truncated: bool = False


async def search_tools(gateway: Gateway, arguments: SearchTools) -> CallToolResult:
    """Searches tools. Raises HutchError if the search is not available."""
    results = await gateway.search(arguments.query, limit=arguments.limit)
    tools = [_found_tool(result, arguments.scores) for result in results]
    if not tools:
        count = len(await gateway.catalog())
        text = f"No tool matches {arguments.query!r}. describe_tools without names lists all {count}."
        return _answer(text, FoundTools([]), arguments)
    # The best tools come first, so that only the worst ones are left out if the text becomes too long.
    shown: list[FoundTool] = []
    texts: list[str] = []
    for tool in tools:
        score = "" if tool.score is None else f"(score {tool.score:g}: {tool.reason})"
        lines = (tool.signature, tool.description, score)
        text = "\n  ".join(line for line in lines if line)
        if sum(map(len, texts)) + len(text) > MAX_CHARS:
            texts.append(f"… truncated, {len(tools) - len(shown)} more tools: use a lower limit")
            break
        shown.append(tool)
        texts.append(text)
    listed = FoundTools(shown, truncated=len(shown) < len(tools))
    return _answer("\n\n".join(texts), listed, arguments)


def _answer(text: str, found: FoundTools, arguments: SearchTools) -> CallToolResult:
    return text_result(text) if arguments.format == "text" else structured_result(found)


def _found_tool(result: SearchResult, with_score: bool) -> FoundTool:
    entry = result.entry
    return FoundTool(
        name=f"tools.{entry.namespace}.{entry.member}",
        server=entry.server,
        tool=entry.tool,
        description=clip(entry.description or "", _MAX_DESCRIPTION),
        signature=clip(signature(entry), _MAX_SIGNATURE),
        score=round(result.score, 3) if with_score else None,
        reason=result.reason if with_score else "",
    )


async def describe_tools(gateway: Gateway, arguments: DescribeTools) -> CallToolResult:
    catalog = await gateway.catalog()
    items = [*filter_items(arguments.filter), *(name.strip() for name in arguments.names)]
    only = ",".join(_filter_item(item, catalog) for item in items if item)
    compact = arguments.detail == "compact" or (arguments.detail == "auto" and not only)
    if catalog.unknown_items(only) and not len(catalog.filtered(only)):
        message = await asyncio.to_thread(_unknown_names, [item for item in items if item], catalog)
        return text_result(message, failed=True)
    text = str(await gateway.declarations(only, compact=compact))
    return text_result(_cut_declarations(text, compact))


def _unknown_names(items: Sequence[str], catalog: Catalog) -> str:
    """Builds the message for names that are all unknown, with similar names."""
    tools = [f"{entry.namespace}.{entry.member}" for entry in catalog]
    lines = []
    for item in items[:_MAX_UNKNOWN_NAMES]:
        name = item.removeprefix("tools.")
        known = tools if "." in name or "__" in name else catalog.namespaces
        similar = [f"tools.{each}" for each in similar_names(name, known)]
        hint = f"did you mean {' or '.join(similar)}?" if similar else "search_tools finds tools."
        lines.append(f"There is no tool or server {item[:200]!r}; {hint}")
    return "\n".join(lines)


def _filter_item(name: str, catalog: Catalog) -> str:
    """Converts a script name such as `tools.github.createIssue` to a filter item."""
    if not catalog.unknown_items(name):
        return name
    server, dot, tool = name.removeprefix("tools.").partition(".")
    return f"{server}__{tool}" if dot else server


def _cut_declarations(text: str, compact: bool) -> str:
    if len(text) <= MAX_CHARS:
        return text
    end = text.rfind("\n", 0, MAX_CHARS) + 1 or MAX_CHARS
    hint = "name fewer tools" if compact else 'name fewer tools, or ask for detail: "compact"'
    return f"{text[:end]}… truncated, {len(text) - end} more characters: {hint}"
