"""Keyword arguments of the Python API, and the conversion of `tools` to providers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypedDict

from hutch.errors import InvalidExecution, InvalidTool
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import Tool

_ToolLike = Provider | Tool | Callable[..., Any]
Tools = _ToolLike | Iterable[_ToolLike] | Mapping[str, _ToolLike | Iterable[_ToolLike]] | None

Engine = Literal["quickjs", "deno"]
Files = Mapping[str, bytes | str]
"""Contents of files by name. Text is encoded as UTF-8."""
McpConfig = str | Path | Mapping[str, Any]
"""Path of a configuration file of MCP servers, or its content."""


class _CommonOptions(TypedDict, total=False):
    inputs: Mapping[str, Any] | None
    files: Files | None
    engine: Engine | None
    mcp: McpConfig | None
    check: bool
    timeout_ms: float | None
    memory_limit_bytes: int | None
    max_log_lines: int | None
    max_log_chars: int | None


class TurnOptions(TypedDict, total=False):
    """Keyword arguments of `Session.run`."""

    tools: Tools
    inputs: Mapping[str, Any] | None
    mcp: McpConfig | None
    timeout_ms: float | None
    memory_limit_bytes: int | None
    max_log_lines: int | None
    max_log_chars: int | None


class RemoteStartOptions(_CommonOptions, total=False):
    """Keyword arguments of `Remote.start`."""

    tools: Tools


class StartOptions(RemoteStartOptions, total=False):
    """Keyword arguments of `Hutch.start`."""

    owner: str


class RemoteOptions(_CommonOptions, total=False):
    """Keyword arguments of `Remote.run` other than `tools`."""

    on_log: Callable[[str], object] | None


class LocalOptions(RemoteOptions, total=False):
    """Keyword arguments of `Hutch.run` other than `tools`."""

    owner: str


class RunOptions(LocalOptions, total=False):
    """Keyword arguments of `Hutch.run`."""

    tools: Tools


def providers_of(tools: Tools) -> list[Provider]:
    """Converts the accepted forms of `tools` to providers.

    A function, or a list of functions, becomes the namespace `tools`. A mapping has one namespace per key.
    Providers are used unchanged, also when mixed with functions.
    """
    if tools is None:
        return []
    if isinstance(tools, Mapping):
        return [Provider.of(*_as_list(group), name=name) for name, group in tools.items()]
    items = _as_list(tools)
    providers = [item for item in items if isinstance(item, Provider)]
    functions = tuple(item for item in items if not isinstance(item, Provider))
    return [_provider(functions), *providers] if functions else providers


def _as_list(tools: Any) -> list[Any]:
    if isinstance(tools, Provider | Tool) or callable(tools):
        return [tools]
    if isinstance(tools, str | bytes) or not isinstance(tools, Iterable):
        raise InvalidTool(f"{tools!r} cannot be a tool.", remedy="Pass functions, not their names.")
    return list(tools)


def check_code(code: object) -> None:
    """Raises InvalidExecution unless `code` is a str."""
    if not isinstance(code, str):
        raise InvalidExecution("code", f"expected a str, got {type(code).__name__}")


@lru_cache(maxsize=128)
def _provider(functions: tuple[Tool | Callable[..., Any], ...]) -> Provider:
    """Creates a provider. The result is cached, because reading type hints and docstrings takes longer than
    many executions.
    """
    return Provider.of(*functions)
