"""Search and description of tools, for a model."""

from __future__ import annotations

import msgspec
from mcp.types import CallToolResult

from hutch.doors.mcp.answers import MOST_CHARS, answer, clip
from hutch.doors.mcp.arguments import DescribeTools, SearchTools
from hutch.doors.toolscript.catalog import Catalog, filter_items
from hutch.doors.toolscript.gateway import Gateway
from hutch.doors.toolscript.module import signature
from hutch.doors.toolscript.search import Found

_MOST_DESCRIPTION = 400
_MOST_SIGNATURE = 1_000


class Hit(msgspec.Struct, frozen=True, rename="camel"):
    """A tool that fits."""

    name: str
    server: str
    tool: str
    description: str
    signature: str
    score: float
    reason: str


class Listed(msgspec.Struct, frozen=True):
    tools: list[Hit]
    truncated: bool = False


async def search(gateway: Gateway, asked: SearchTools) -> CallToolResult:
    """Raises HutchError where there is no search to be had."""
    found = [_listed(each) for each in await gateway.search(asked.query, limit=asked.limit)]
    if not found:
        count = len(await gateway.catalog())
        text = (
            f"No tool fits {asked.query!r}. There are {count}: describe_tools without names lists them all."
        )
        return answer(text, msgspec.to_builtins(Listed([])))
    # The best come first, so whatever is left out is worse.
    shown: list[Hit] = []
    texts: list[str] = []
    for each in found:
        lines = (each.signature, each.description, f"(score {each.score:g}: {each.reason})")
        text = "\n  ".join(line for line in lines if line)
        if sum(map(len, texts)) + len(text) > MOST_CHARS:
            texts.append(f"… truncated, {len(found) - len(shown)} more tools: ask for fewer")
            break
        shown.append(each)
        texts.append(text)
    listed = Listed(shown, truncated=len(shown) < len(found))
    return answer("\n\n".join(texts), msgspec.to_builtins(listed))


def _listed(found: Found) -> Hit:
    entry = found.entry
    return Hit(
        name=f"tools.{entry.namespace}.{entry.member}",
        server=entry.server,
        tool=entry.tool,
        description=clip(entry.description or "", _MOST_DESCRIPTION),
        signature=clip(signature(entry), _MOST_SIGNATURE),
        score=round(found.score, 3),
        reason=found.reason,
    )


async def describe(gateway: Gateway, asked: DescribeTools) -> CallToolResult:
    catalog = await gateway.catalog()
    items = [*filter_items(asked.filter), *(name.strip() for name in asked.names)]
    only = ",".join(_item(each, catalog) for each in items if each)
    compact = asked.detail == "compact" or (asked.detail == "auto" and not only)
    text = str(await gateway.declarations(only, compact=compact))
    unknown = catalog.unknown(only)
    nothing = bool(only) and not len(catalog.filtered(only))
    return answer(_shortened(text, compact), failed=nothing and bool(unknown))


def _item(name: str, catalog: Catalog) -> str:
    """A name as filters know it: scripts write `tools.github.createIssue`."""
    if not catalog.unknown(name):
        return name
    server, dot, tool = name.removeprefix("tools.").partition(".")
    return f"{server}__{tool}" if dot else server


def _shortened(text: str, compact: bool) -> str:
    if len(text) <= MOST_CHARS:
        return text
    whole = text.rfind("\n", 0, MOST_CHARS) + 1 or MOST_CHARS
    hint = "name fewer tools" if compact else 'name fewer tools, or ask for detail: "compact"'
    return f"{text[:whole]}… truncated, {len(text) - whole} more characters: {hint}"
