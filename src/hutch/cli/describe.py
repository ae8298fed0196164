"""`hutch packages describe`: what the tools of a package do and take."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from hutch import settings as settings_module
from hutch.app import App
from hutch.cli import loop
from hutch.cli.alone import ALONE, started
from hutch.cli.arguments import env_of
from hutch.cli.output import print_json
from hutch.cli.tool import CALLER, fetched, told
from hutch.doors.tpmjs.calls import ToolCall, ToolDescription, ToolFailure
from hutch.npm import names
from hutch.npm.names import PackageSpec
from hutch.npm.shelf import Package
from hutch.session.jsonvalue import encode_value
from hutch.settings import Settings

# The longest package.json that is looked into.
_MAX_BYTES = 1024 * 1024
_MAX_TOOLS = 256


class Described(msgspec.Struct, frozen=True):
    """A package, and what was found of its tools."""

    package: Package
    tools: list[ToolDescription]
    failures: list[ToolFailure]


def describe(package: str, name: str | None, *, env: Sequence[str], json: bool) -> int:
    """The command's exit code: 1 if anything cannot be described."""
    settings = settings_module.load(ALONE)
    spec, variables = names.parse_argument(package), env_of(env)
    found = loop.run(_describe(settings, spec, name, variables))
    if json:
        package_of = {"name": found.package.name, "version": found.package.version}
        print_json(encode_value({**package_of, "tools": found.tools}))
    elif found.tools:
        print(*_page(found), sep="\n")
    for failure in found.failures:
        print(f"hutch: {told(failure)}", file=sys.stderr)
    return 1 if found.failures else 0


async def _describe(
    settings: Settings, spec: PackageSpec, name: str | None, env: dict[str, str]
) -> Described:
    async with started(settings) as app:
        package = await fetched(app, spec)
        wanted = [name] if name is not None else listed(package) or ["default"]
        return await _describe_each(app, package, wanted, env)


async def _describe_each(app: App, package: Package, wanted: list[str], env: dict[str, str]) -> Described:
    found = Described(package, [], [])
    exact = PackageSpec(package.name, package.version)
    for each in wanted:
        call = ToolCall(spec=exact, name=each, env=env, caller=CALLER)
        tool, failure, _ = await app.tools.describe(call)
        if tool is not None:
            found.tools.append(tool)
        elif failure is not None:
            found.failures.append(failure)
    return found


def listed(package: Package) -> list[str]:
    """What the field `tpmjs` of a package.json lists as tools, whether they are there or not."""
    try:
        with (package.tree / "node_modules" / package.name / "package.json").open("rb") as file:
            manifest = msgspec.json.decode(file.read(_MAX_BYTES), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, RecursionError):
        return []
    field = manifest.get("tpmjs")
    tools = field.get("tools") if isinstance(field, dict) else None
    entries = tools if isinstance(tools, list) else []
    named = [each.get("name") for each in entries if isinstance(each, dict)]
    return [*dict.fromkeys(name for name in named if isinstance(name, str) and name)][:_MAX_TOOLS]


# --- for people ---


def _page(found: Described) -> list[str]:
    lines = [f"{found.package.name}@{found.package.version}"]
    for tool in found.tools:
        lines += ["", tool.name]
        lines += [f"  {line}" for line in tool.description.splitlines()]
        lines += _parameters(tool.input_schema)
    return lines


def _parameters(schema: dict[str, Any]) -> list[str]:
    """A line for each; what is inside of them is for --json."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return []
    needed = required if isinstance(required, list) else []
    rows = [
        (name, _kind(each), "required" if name in needed else "", _text(each))
        for name, each in properties.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    return ["    " + "  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows]


def _kind(schema: object) -> str:
    if not isinstance(schema, dict):
        return "any"
    kind, choices = schema.get("type"), schema.get("enum")
    if isinstance(choices, list):
        return " | ".join(msgspec.json.encode(each).decode() for each in choices)
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    return kind if isinstance(kind, str) else "any"


def _text(schema: object) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return " ".join(text.split()) if isinstance(text, str) else ""
