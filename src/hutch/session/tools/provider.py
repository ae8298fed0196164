"""Providers: namespaces of tools for a guest.

The modules that create tools from functions, and declarations from schemas, are imported when they are
needed, because most executions need neither.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, lru_cache, partial
from types import TracebackType
from typing import Any

from hutch.errors import InvalidTool, Suspend, ToolError
from hutch.session.json_value import encode_value, well_formed
from hutch.session.tools.names import check_namespace, is_identifier, safe_names
from hutch.session.tools.tool import Tool, ToolContext

logger = logging.getLogger("hutch.tools")

MAX_MESSAGE_CHARS = 8_000
# Longer manifests are not cached, because clients choose the names and could fill the memory.
MAX_CACHED_NAME_CHARS = 16_384


class Provider:
    """Namespace of tools, keyed by safe name."""

    def __init__(
        self, name: str, tools: Mapping[str, Tool], types: str | None = None, *, parent: str | None = None
    ) -> None:
        """With `parent`, the namespace is a member of the global with that name: `parent.name`. Only Hutch
        supports this.
        """
        check_namespace(name if parent is None else parent)
        self.is_internal = False
        """True if a protocol uses the tools for itself, so that calls are not shown in traces."""
        self.name = name if parent is None else f"{parent}.{name}"
        self.tools = dict(tools)
        self._types = types

    @classmethod
    def of(cls, *tools: Tool | Callable[..., Any], name: str = "tools") -> Provider:
        """Creates a provider from tools and functions. Raises InvalidTool."""
        from hutch.session.tools.functions import cached_tool

        check_namespace(name)
        converted = [tool if isinstance(tool, Tool) else cached_tool(tool) for tool in tools]
        return cls(name, dict(zip(safe_names(tool.name for tool in converted), converted, strict=True)))

    @classmethod
    def from_manifest(
        cls, manifest: Mapping[str, Any], call: Callable[[str, Any, ToolContext], Awaitable[bytes]]
    ) -> Provider:
        """Creates a provider of remote tools. `call` gets the safe name, the input and the context.

        Raises InvalidTool, which names the field of the manifest.
        """
        entries = _check_manifest(manifest)
        tools = {
            safe: Tool(
                entry["originalName"],
                partial(call, safe),
                description=entry.get("description"),
                output_schema=_schema(entry.get("outputSchema")),
                streams=entry.get("streams") is True,
                idempotent=entry.get("idempotent") is True,
            )
            for safe, entry in entries.items()
        }
        parent, dot, name = manifest["name"].rpartition(".")
        return cls(name, tools, manifest["types"], parent=parent if dot else None)

    def declarations(self) -> str:
        """Returns TypeScript declarations of the tools."""
        if self._types is None:
            from hutch.session.schema.typescript import namespace_declaration

            self._types = well_formed(namespace_declaration(self.name, self.tools))
        return self._types

    def manifest(self) -> dict[str, Any]:
        """Returns the description for a runner. The dict is shared between calls and must not be changed."""
        return self._manifest

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        tools = _entries(self._names)
        for safe, tool in self.tools.items():
            if tool.description is not None:
                tools[safe]["description"] = well_formed(tool.description)
            if tool.idempotent:
                tools[safe]["idempotent"] = True
        return {"name": self.name, "tools": tools, "types": self.declarations()}

    def manifest_json(self, *, full: bool) -> bytes:
        """Returns the manifest as JSON text. Without `full`, it contains only the names, because Hutch's own
        runners read nothing else.
        """
        return self._manifest_json if full else self._names_json

    @cached_property
    def _manifest_json(self) -> bytes:
        return encode_value(self.manifest())

    def manifest_with_schemas(self) -> bytes:
        """Returns the manifest as JSON text, with the schemas of the results."""
        tools = {
            safe: entry
            if (schema := self.tools[safe].output_schema) is None
            else {**entry, "outputSchema": schema}
            for safe, entry in self._manifest["tools"].items()
        }
        return encode_value({**self._manifest, "tools": tools})

    @cached_property
    def _names_json(self) -> bytes:
        names = self._names
        size = sum(len(safe) + len(original) for safe, original, _ in names)
        encode = _cached_names_json if size <= MAX_CACHED_NAME_CHARS else _names_json
        return encode(self.name, names)

    @property
    def _names(self) -> tuple[tuple[str, str, bool], ...]:
        """Safe names, original names, and whether the tool streams."""
        return tuple((safe, tool.name, tool.streams) for safe, tool in self.tools.items())

    async def dispatch(self, safe_name: str, input: Any, context: ToolContext) -> bytes:
        """Calls a tool and returns the JSON text of its result. Raises only ToolError."""
        tool = self.tools.get(safe_name)
        if tool is None:
            raise ToolError(f"Unknown tool {self.name}.{safe_name}", "internal_error")
        try:
            return await tool.call(input, context)
        except Suspend:
            raise
        except (Exception, SystemExit) as error:
            if not isinstance(error, ToolError):
                # Log the traceback for the author of the tool, because the guest gets only the message.
                exc_info = (type(error), error, _trace_of_the_tool(error.__traceback__))
                logger.warning("the tool %s.%s failed", self.name, tool.name, exc_info=exc_info)
            raise _as_tool_error(error) from error


_OWN_MODULES = (__name__, "hutch.session.tools.functions")


def _trace_of_the_tool(trace: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback that starts with the tool's own function, if there is one."""
    last, entry = None, trace
    while entry is not None:
        if entry.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
            last = entry
        entry = entry.tb_next
    return trace if last is None else last.tb_next or trace


def _entries(names: Iterable[tuple[str, str, bool]]) -> dict[str, dict[str, Any]]:
    return {
        safe: {
            "safeName": safe,
            "originalName": well_formed(original),
            **({"streams": True} if streams else {}),
        }
        for safe, original, streams in names
    }


def _names_json(provider: str, names: tuple[tuple[str, str, bool], ...]) -> bytes:
    """Returns a manifest with only the names."""
    return encode_value({"name": provider, "tools": _entries(names), "types": ""})


# Cache by content and not by provider, because many providers exist for one run only and have the same tools
# as the provider of the previous run.
_cached_names_json = lru_cache(256)(_names_json)


def check_providers(providers: Iterable[Provider]) -> dict[str, Provider]:
    """Returns providers by name. Raises InvalidTool if two have the same name."""
    by_name: dict[str, Provider] = {}
    for provider in providers:
        if provider.name in by_name:
            raise InvalidTool(
                f"Two providers are called {provider.name}.", remedy="Give each provider its own name."
            )
        by_name[provider.name] = provider
    for name in by_name:
        parent, dot, member = name.rpartition(".")
        if dot and parent in by_name and member in by_name[parent].tools:
            raise InvalidTool(
                f"{name} is a tool and the namespace of an MCP server.", remedy="Rename one of them."
            )
    return by_name


def _as_tool_error(error: BaseException) -> ToolError:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    code = error.tool_code if isinstance(error, ToolError) else "tool_error"
    message = well_formed(str(error)) or type(error).__name__
    if isinstance(error, KeyError):
        # Add the name of the class, because the text of a KeyError is only the key.
        message = f"{type(error).__name__}: {message}"
    return ToolError(
        message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…", code
    )


def _check_manifest(manifest: Any) -> Mapping[str, Any]:
    if not isinstance(manifest, Mapping):
        raise InvalidTool(f"Provider manifest: expected an object, got {type(manifest).__name__}.")
    parent, dot, name = _text(manifest, "name", "manifest").rpartition(".")
    # For a name with a parent, check only the parent: a member of a namespace may be a reserved word.
    check_namespace(parent if dot and is_identifier(name) else name)
    _text(manifest, "types", "manifest")
    entries = manifest.get("tools")
    if not isinstance(entries, Mapping):
        raise InvalidTool("Provider manifest: `manifest.tools` must be an object.")
    for safe, entry in entries.items():
        where = f"manifest.tools.{safe}"
        if not isinstance(safe, str) or not is_identifier(safe):
            raise InvalidTool(f"Provider manifest: `{where}` must be a JavaScript identifier.")
        if not isinstance(entry, Mapping):
            raise InvalidTool(f"Provider manifest: `{where}` must be an object.")
        if _text(entry, "safeName", where) != safe:
            raise InvalidTool(f"Provider manifest: `{where}.safeName` must be its key, `{safe}`.")
        _text(entry, "originalName", where)
        if "description" in entry:
            _text(entry, "description", where)
    return entries


def _schema(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _text(holder: Mapping[str, Any], field: str, where: str) -> str:
    value = holder.get(field)
    if not isinstance(value, str):
        got = type(value).__name__ if field in holder else "nothing"
        raise InvalidTool(f"Provider manifest: `{where}.{field}` must be a string, got {got}.")
    return value
