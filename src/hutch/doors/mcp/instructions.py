"""What a model is told of this server before it asks: what code mode is, and which servers there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hutch.doors.toolscript.catalog import Catalog, Server
from hutch.session.jsonvalue import well_formed

_MOST_SERVERS = 40
_MOST_TITLE = 80

_CODE_MODE = """\
Hutch gives you the tools of several MCP servers as one typed TypeScript API. Instead of calling tools one by
one, write a script that calls many, keeps what is large out of your context, and returns only what you need.

1. search_tools finds tools by what they do; describe_tools gives their exact types.
2. run_code runs a script in a sandbox, for example:
   import { tools } from "toolscript";
   const issues = await tools.github.listIssues({ state: "open" });
   return issues.filter((issue) => issue.comments > 5).map((issue) => issue.title);
   Its types are checked first: what is wrong comes back with line and signature, to be corrected. A call that
   fails throws a ToolError (server, tool, message, details). Independent calls go into Promise.all. A script
   has no files, no network and no packages; its tools are all that it can reach."""


def instructions(servers: Sequence[Server], catalog: Catalog | None) -> str:
    """`catalog` is None while servers are still being connected to."""
    listed = "\n".join(_servers(servers, catalog)) or "There are none: whoever runs Hutch configures them."
    return f"{_CODE_MODE}\n\nServers:\n{listed}"


def _servers(servers: Sequence[Server], catalog: Catalog | None) -> Iterable[str]:
    tools: dict[str, tuple[str, int]] = {}
    for entry in catalog or ():
        tools[entry.server] = entry.namespace, tools.get(entry.server, ("", 0))[1] + 1
    for each in servers[:_MOST_SERVERS]:
        title = f": {line(each.title)}" if each.title and each.title != each.name else ""
        namespace, count = tools.get(each.name, ("", 0))
        if count:
            yield f"- tools.{namespace}{title} ({count} tool{'' if count == 1 else 's'})"
        elif each.state == "failed":
            yield f"- {line(each.name)}{title} (not connected)"
        elif each.state == "connected":
            yield f"- {line(each.name)}{title} (no tools)"
        else:
            yield f"- {line(each.name)}{title} (connecting)"
    if len(servers) > _MOST_SERVERS:
        yield f"- and {len(servers) - _MOST_SERVERS} more"


def line(text: str) -> str:
    """A name or title that a server gave itself: one line, not long."""
    plain = " ".join(well_formed(text[: 4 * _MOST_TITLE]).split())
    return plain if len(plain) <= _MOST_TITLE else f"{plain[:_MOST_TITLE]}…"
