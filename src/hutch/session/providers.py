"""Providers: namespaces of tools that are lent to a guest."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

from hutch.errors import InvalidTool, ToolError
from hutch.session.declarations import declare
from hutch.session.functions import known_tool
from hutch.session.jsonvalue import encode_value, well_formed
from hutch.session.names import check_namespace, is_identifier, safe_names
from hutch.session.tools import Tool, ToolContext

logger = logging.getLogger("hutch.tools")

MAX_MESSAGE = 8_000


class Provider:
    """A namespace of tools, by their safe names."""

    def __init__(self, name: str, tools: Mapping[str, Tool], types: str | None = None) -> None:
        check_namespace(name)
        self.name = name
        self.tools = dict(tools)
        self._types = types

    @classmethod
    def of(cls, *tools: Tool | Callable[..., Any], name: str = "tools") -> Provider:
        """A provider of tools and functions. Raises InvalidTool."""
        check_namespace(name)
        made = [each if isinstance(each, Tool) else known_tool(each) for each in tools]
        return cls(name, dict(zip(safe_names(each.name for each in made), made, strict=True)))

    @classmethod
    def from_manifest(
        cls, manifest: Mapping[str, Any], call: Callable[[str, Any, ToolContext], Awaitable[bytes]]
    ) -> Provider:
        """A provider whose tools live elsewhere: `call` gets the safe name, the input and the context.

        Raises InvalidTool that names the field of the manifest.
        """
        entries = _check_manifest(manifest)
        tools = {
            safe: Tool(entry["originalName"], partial(call, safe), description=entry.get("description"))
            for safe, entry in entries.items()
        }
        return cls(manifest["name"], tools, manifest["types"])

    def original_name(self, safe_name: str) -> str:
        """The original name of a tool; of an unknown one, the name itself."""
        known = self.tools.get(safe_name)
        return safe_name if known is None else known.name

    def declarations(self) -> str:
        """The tools as TypeScript."""
        if self._types is None:
            self._types = well_formed(declare(self.name, self.tools))
        return self._types

    def manifest(self) -> dict[str, Any]:
        """What a runner is told: one dict for all calls, not to be changed."""
        return self._manifest

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        tools = _entries(self._names)
        for safe, each in self.tools.items():
            if each.description is not None:
                tools[safe]["description"] = well_formed(each.description)
        return {"name": self.name, "tools": tools, "types": self.declarations()}

    def manifest_json(self, *, full: bool) -> bytes:
        """The manifest as JSON text; without `full` only the names, all that our own runners read."""
        return self._manifest_json if full else self._names_json

    @cached_property
    def _manifest_json(self) -> bytes:
        return encode_value(self.manifest())

    @cached_property
    def _names_json(self) -> bytes:
        return _names_json(self.name, self._names)

    @property
    def _names(self) -> tuple[tuple[str, str], ...]:
        """Safe and original."""
        return tuple((safe, each.name) for safe, each in self.tools.items())

    async def dispatch(self, safe_name: str, input: Any, context: ToolContext) -> bytes:
        """The JSON text of what a tool gives for an input. Raises ToolError and nothing else."""
        called = self.tools.get(safe_name)
        if called is None:
            raise ToolError(f"Unknown tool {self.name}.{safe_name}", "internal_error")
        try:
            return await called.call(input, context)
        except (Exception, SystemExit) as error:
            if not isinstance(error, ToolError):
                # The guest gets the text alone; whoever wrote the tool wants to know where.
                logger.warning("the tool %s.%s failed", self.name, called.name, exc_info=error)
            raise _as_tool_error(error) from error


def _entries(names: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
    return {safe: {"safeName": safe, "originalName": well_formed(original)} for safe, original in names}


@lru_cache(256)
def _names_json(provider: str, names: tuple[tuple[str, str], ...]) -> bytes:
    """Many providers are made for one run each, with the same tools as the one before."""
    return encode_value({"name": provider, "tools": _entries(names), "types": ""})


def check_providers(providers: Iterable[Provider]) -> dict[str, Provider]:
    """Providers by name. Raises InvalidTool if two have the same."""
    by_name: dict[str, Provider] = {}
    for each in providers:
        if each.name in by_name:
            raise InvalidTool(f"Two providers are called {each.name}.", remedy="Give each its own name.")
        by_name[each.name] = each
    return by_name


def _as_tool_error(error: BaseException) -> ToolError:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    code = error.tool_code if isinstance(error, ToolError) else "tool_error"
    message = well_formed(str(error)) or type(error).__name__
    if isinstance(error, KeyError):
        # Its text is the key alone.
        message = f"{type(error).__name__}: {message}"
    return ToolError(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…", code)


def _check_manifest(manifest: Any) -> Mapping[str, Any]:
    if not isinstance(manifest, Mapping):
        raise InvalidTool(f"Provider manifest: expected an object, got {type(manifest).__name__}.")
    name = _text(manifest, "name", "manifest")
    check_namespace(name)
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


def _text(holder: Mapping[str, Any], field: str, where: str) -> str:
    value = holder.get(field)
    if not isinstance(value, str):
        got = type(value).__name__ if field in holder else "nothing"
        raise InvalidTool(f"Provider manifest: `{where}.{field}` must be a string, got {got}.")
    return value
