"""The door's own tools, as clients see them listed."""

from __future__ import annotations

from collections.abc import Sequence

from mcp.types import Tool, ToolAnnotations

from hutch.doors.mcp.answers import Ran
from hutch.doors.mcp.arguments import DescribeTools, RunCode, SearchTools, schema_of
from hutch.doors.mcp.found import Listed
from hutch.doors.mcp.instructions import line
from hutch.doors.toolscript.catalog import Server

NAMES = ("search_tools", "describe_tools", "run_code")
_MOST_NAMED = 40

_SEARCH = """\
Finds tools by what they do, among those of all connected MCP servers ({servers}). Gives the best first, and
how each is called in a script for run_code."""

_DESCRIBE = """\
TypeScript declarations of tools: what a script for run_code can call, with the types of arguments and
results. Name the tools or servers that you need; without names it is an overview of all."""

_RUN = """\
Runs a script that calls any number of the MCP servers' tools, in a sandbox, and gives back what it returns
and prints. For example:

import { tools } from "toolscript";
const numbers = [1, 2, 3];
const issues = await Promise.all(numbers.map((number) => tools.github.getIssue({ number })));
return issues.map((issue) => issue.title);

It is TypeScript with top-level await and return, and its types are checked first: find names and types with
search_tools and describe_tools. Long results are truncated, so filter in the script."""


def own_tools(servers: Sequence[Server]) -> list[Tool]:
    named = ", ".join(line(each.name) for each in servers[:_MOST_NAMED]) or "none yet"
    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return [
        Tool(
            name="search_tools",
            title="Search tools",
            description=_SEARCH.format(servers=named),
            input_schema=schema_of(SearchTools),
            output_schema=schema_of(Listed),
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
            output_schema=schema_of(Ran),
            annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True),
        ),
    ]
