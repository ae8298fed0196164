"""Describes what the configuration files of a project would do, for a person who decides whether to trust
them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from typing import Any

import msgspec

from hutch import settings
from hutch.mcp_client import config_file
from hutch.mcp_client.config import ServerConfig, StdioConfig
from hutch.protocols.rep.ir.source import project
from hutch.settings.config_text import ConfigText

FILES = (settings.FILE, config_file.DEFAULT_FILE, str(project.FILE))


class ProjectItem(msgspec.Struct, frozen=True, kw_only=True):
    """A server, a setting or a runtime in a file."""

    name: str
    effects: tuple[str, ...]
    """Lines that describe the effect of the item: a command with its arguments, an address, or a value."""
    digest: str
    """Changes if anything about the item changes."""


class ProjectFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: ConfigText
    items: tuple[ProjectItem, ...]
    variables: tuple[str, ...] = ()
    """Environment variables whose values the file asks for."""

    @property
    def names_programs(self) -> bool:
        return self.name != settings.FILE and bool(self.items)

    @property
    def digests(self) -> dict[str, str]:
        return {item.name: item.digest for item in self.items}


def describe_file(name: str, source: ConfigText) -> ProjectFile:
    """Parses one of FILES. Raises ConfigError or SettingError if it is invalid."""
    if name == settings.FILE:
        return _describe_settings(name, source)
    if name == config_file.DEFAULT_FILE:
        return _describe_servers(name, source)
    return _describe_runtime(name, source)


def _describe_settings(name: str, source: ConfigText) -> ProjectFile:
    values = settings.project_values(source)
    items = tuple(_item(key, value, (f"= {json.dumps(value)}",)) for key, value in values.items())
    return ProjectFile(name=name, source=source, items=items)


def _describe_servers(name: str, source: ConfigText) -> ProjectFile:
    reader = config_file.ConfigFile(source, os.environ)
    entries, servers = reader.entries(), reader.servers()
    items = tuple(
        _item(server, entry, _server_effects(entry, servers.get(server))) for server, entry in entries.items()
    )
    variables = tuple(config_file.variables_in(entries))
    return ProjectFile(name=name, source=source, items=items, variables=variables)


def _server_effects(entry: dict[str, Any], server: ServerConfig | None) -> tuple[str, ...]:
    """Describes a server as it is written, because the values of variables may be secrets."""
    if server is None:
        return ("is disabled",)
    if isinstance(server.transport, StdioConfig):
        return (
            f"runs {shlex.join([entry['command'], *(entry.get('args') or ())])}",
            *([f"in {shlex.quote(entry['cwd'])}"] if entry.get("cwd") else ()),
            *(f"with {name}={shlex.quote(value)}" for name, value in (entry.get("env") or {}).items()),
        )
    return (
        f"connects to {entry['url']}",
        *(f"with the header {name}: {value}" for name, value in (entry.get("headers") or {}).items()),
        *(f"with the OAuth {name} {value}" for name, value in (entry.get("oauth") or {}).items()),
    )


def _describe_runtime(name: str, source: ConfigText) -> ProjectFile:
    bound = project.parse(source)
    program = "the built-in runtime" if bound.executor_path is None else shlex.quote(bound.executor_path)
    item = _item(bound.engine, bound.executor_path, (f"runs flows with {program}",))
    return ProjectFile(name=name, source=source, items=(item,))


def _item(name: str, value: Any, effects: tuple[str, ...]) -> ProjectItem:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return ProjectItem(name=name, effects=effects, digest=digest)
