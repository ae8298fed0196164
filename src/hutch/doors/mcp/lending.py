"""All tools as globals of JavaScript: a provider for every server, under the names that scripts know."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any

from hutch.doors.toolscript.catalog import Catalog, Entry
from hutch.doors.toolscript.gateway import Gateway
from hutch.errors import InvalidTool, ToolError, UpstreamError
from hutch.session.jsonvalue import NotJsonSafe, encode_value
from hutch.session.names import check_namespace, is_identifier, safe_name
from hutch.session.providers import Provider
from hutch.session.tools import Tool, ToolContext


def providers(catalog: Catalog, gateway: Gateway) -> list[Provider]:
    """Through the gateway, and so by its policy."""

    async def call(entry: Entry, value: Any, context: ToolContext) -> bytes:
        return await _call(gateway, entry, value, context.run_id)

    made: dict[str, Provider] = {}
    for _, entries in groupby(catalog, lambda entry: entry.server):
        tools: dict[str, Tool] = {}
        namespace = ""
        for entry in entries:
            namespace = entry.namespace
            name = entry.member if is_identifier(entry.member) else safe_name(entry.member)
            tools[_free(name, tools)] = Tool(entry.tool, partial(call, entry), description=entry.description)
        name = _free(_bindable(namespace), made)
        made[name] = Provider(name, tools)
    return list(made.values())


async def _call(gateway: Gateway, entry: Entry, value: Any, run: str) -> bytes:
    arguments = {} if value is None else value
    if not isinstance(arguments, dict):
        kind = "a list" if isinstance(arguments, list) else type(arguments).__name__
        raise ToolError(f"Expected an object of arguments, got {kind}", "validation_error")
    try:
        return encode_value(await gateway.call(entry.server, entry.tool, arguments, run=run))
    except UpstreamError as error:
        code = "validation_error" if error.kind == "invalid_arguments" else "tool_error"
        raise ToolError(error.message, code) from error
    except NotJsonSafe as error:
        raise ToolError(f"The result of {entry.qualified} cannot be passed on: {error}") from None


def _free(name: str, taken: dict[str, Any]) -> str:
    while name in taken:
        name += "_"
    return name


def _bindable(namespace: str) -> str:
    name = namespace if is_identifier(namespace) else safe_name(namespace)
    try:
        check_namespace(name)
    except InvalidTool:
        return f"{name}_"
    return name
