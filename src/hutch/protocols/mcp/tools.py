"""Hutch's own MCP tools, and the instructions that models get about code mode and the connected servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcp.types import Tool, ToolAnnotations

from hutch.protocols.mcp.arguments import ContinueRun, DescribeTools, RunCode, SearchTools, schema_of
from hutch.protocols.toolscript.gateway.catalog import Catalog, ServerInfo
from hutch.session.json_value import well_formed

OWN_TOOL_NAMES = ("search_tools", "describe_tools", "run_code")
CONTINUE_RUN = "continue_run"
_MAX_SERVERS = 40
_MAX_TITLE = 80

_SEARCH = """\
Searches the tools of all connected MCP servers ({servers}) by what they do. Returns the best matches first,
each with the call for a run_code script."""

_DESCRIBE = """\
Returns TypeScript declarations of tools: the functions that a run_code script can call, with the types of
their arguments and results. Name the tools or servers that you need; without names, all tools are listed."""

_RUN = """\
Runs a script in a sandbox and returns its result and output. The script can call any number of tools of the
MCP servers. For example:

const numbers = [1, 2, 3];
const issues = await Promise.all(numbers.map((number) => tools.github.getIssue({ number })));
return issues.map((issue) => issue.title);

Scripts are TypeScript with top-level await and return. Types are checked before the script runs: find names
and types with search_tools and describe_tools. Long results are truncated, so filter data in the script."""


_CONTINUE = """\
Continues a run_code run that waits until a person has approved a tool call. Returns the result of the run, or
says that it still waits. Use it instead of running the code again."""


def own_tools(servers: Sequence[ServerInfo], *, can_suspend: bool = False) -> list[Tool]:
    """Returns Hutch's own tools. Includes `continue_run` only if runs can be suspended."""
    named = ", ".join(one_line(server.name) for server in servers[:_MAX_SERVERS]) or "none yet"
    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    continue_run = Tool(
        name=CONTINUE_RUN,
        title="Continue a run",
        description=_CONTINUE,
        input_schema=schema_of(ContinueRun),
        annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True),
    )
    return [
        Tool(
            name="search_tools",
            title="Search tools",
            description=_SEARCH.format(servers=named),
            input_schema=schema_of(SearchTools),
            annotations=read_only,
        ),
        Tool(
            name="describe_tools",
            title="Describe tools",
            description=_DESCRIBE,
            input_schema=schema_of(DescribeTools),
            annotations=read_only,
        ),
        Tool(
            name="run_code",
            title="Run code",
            description=_RUN,
            input_schema=schema_of(RunCode),
            annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True),
        ),
        *([continue_run] if can_suspend else []),
    ]


# --- instructions ---

_CODE_MODE = """\
Hutch provides the tools of several MCP servers as one typed TypeScript API. Instead of calling tools one by
one, write a script that calls several, keeps large data out of your context, and returns only what you need.

1. search_tools finds tools by what they do; describe_tools returns their exact types.
2. run_code runs a script in a sandbox, for example:
   const issues = await tools.github.listIssues({ state: "open" });
   return issues.filter((issue) => issue.comments > 5).map((issue) => issue.title);
   Types are checked first: errors have the line and the signature of the tool, so that you can fix them. A
   failed call throws a ToolError (server, tool, message, details). Use Promise.all for independent calls. A
   script cannot use files, the network or packages; it can only call tools."""

_NO_SERVERS = (
    "None are configured. The user can list servers in ~/.toolscript.json, or run `hutch trust` in a project "
    "that has a .toolscript.json."
)


def instructions(servers: Sequence[ServerInfo], catalog: Catalog | None) -> str:
    """Returns the instructions. `catalog` is None while servers are still connecting."""
    listed = "\n".join(_server_lines(servers, catalog)) or _NO_SERVERS
    return f"{_CODE_MODE}\n\nServers:\n{listed}"


def _server_lines(servers: Sequence[ServerInfo], catalog: Catalog | None) -> Iterable[str]:
    tools: dict[str, tuple[str, int]] = {}
    for entry in catalog or ():
        tools[entry.server] = entry.namespace, tools.get(entry.server, ("", 0))[1] + 1
    for server in servers[:_MAX_SERVERS]:
        title = f": {one_line(server.title)}" if server.title and server.title != server.name else ""
        namespace, count = tools.get(server.name, ("", 0))
        if count:
            yield f"- tools.{namespace}{title} ({count} tool{'' if count == 1 else 's'})"
        elif server.state == "failed":
            yield f"- {one_line(server.name)}{title} (not connected)"
        elif server.state == "connected":
            yield f"- {one_line(server.name)}{title} (no tools)"
        else:
            yield f"- {one_line(server.name)}{title} (connecting)"
    if len(servers) > _MAX_SERVERS:
        yield f"- and {len(servers) - _MAX_SERVERS} more"


def one_line(text: str) -> str:
    """Shortens a server's name or title to one line."""
    plain = " ".join(well_formed(text[: 4 * _MAX_TITLE]).split())
    return plain if len(plain) <= _MAX_TITLE else f"{plain[:_MAX_TITLE]}…"
