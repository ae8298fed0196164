"""`hutch packages`: manages installed npm packages and describes the tools of a package."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hutch import errors
from hutch.cli.npm.tool import (
    CALLER,
    InstallProgress,
    PackageArgument,
    describe_failure,
    open_package,
    parse_package_argument,
)
from hutch.cli.support import console, event_loop
from hutch.cli.support.arguments import parse_env
from hutch.cli.support.console import print_json
from hutch.cli.support.event_loop import ONE_SHOT_SETTINGS, open_app
from hutch.cli.support.project import current_folder, load_project_settings
from hutch.errors import HutchError, PackageNotFound, SettingError
from hutch.npm.package_spec import PackageSpec, parse_spec_argument
from hutch.npm.packages import Package, PackageInfo, PackageManager, PruneResult
from hutch.protocols.tpmjs.health_check import HealthCheck, listed_tools
from hutch.protocols.tpmjs.models import PackageToolCall, ToolDescription, ToolFailure
from hutch.session.json_value import encode_value
from hutch.settings import MIB, Settings, load_settings
from hutch.text import cut

if TYPE_CHECKING:
    from hutch.app.app import App

T = TypeVar("T")


def list_packages(*, json: bool) -> int:
    async def load(manager: PackageManager) -> list[PackageInfo]:
        return manager.list()

    installed = _with_packages(load)
    if json:
        print_json(msgspec.json.encode(installed))
    elif installed:
        _print_packages(installed)
    else:
        console.print_note("no packages are installed; `hutch packages add NAME` installs one")
    return 0


def add_packages(packages: Sequence[str]) -> int:
    """Installs packages. The default is the latest version. Returns 1 if any package cannot be installed."""
    specs = [parse_spec_argument(text) for text in packages]

    async def add(manager: PackageManager) -> int:
        failures = 0
        for spec in specs:
            progress = InstallProgress(str(spec))
            try:
                package = await manager.add(spec, progress)
            except PackageNotFound as error:
                failures += 1
                progress.end()
                console.print_note(str(error))
            else:
                progress.end()
                console.print_line(
                    f"{package.name}@{package.version}  {_format_size(package.size)}, {package.files} files"
                )
        return failures

    return 1 if _with_packages(add) else 0


def remove_packages(packages: Sequence[str]) -> int:
    """Removes one version, the versions in a range, or all versions. Returns 1 if any package is not
    installed.
    """
    specs = [(parse_spec_argument(text), "@" in text[1:]) for text in packages]

    async def remove(manager: PackageManager) -> int:
        missing = 0
        for spec, has_version in specs:
            removed = await manager.remove(spec.name, spec.version if has_version else None)
            for package in removed:
                console.print_line(f"removed {package.name}@{package.version}")
            if not removed:
                missing += 1
                console.print_note(f"{spec if has_version else spec.name} is not installed")
        return missing

    return 1 if _with_packages(remove) else 0


def prune_packages(*, days: float) -> int:
    """Removes packages that were not used for `days`, and the remains of interrupted installations."""
    if not 0 <= days < float("inf"):
        raise SettingError(f"--days: expected a number of at least 0, got {days:g}.")

    async def prune(manager: PackageManager) -> PruneResult:
        return await manager.prune(days)

    pruned = _with_packages(prune)
    for package in pruned.packages:
        console.print_line(
            f"removed {package.name}@{package.version}, last used {console.format_age(package.used)}"
        )
    if pruned.leftovers:
        console.print_line(f"removed {pruned.leftovers} leftovers")
    console.print_line(f"{_format_size(pruned.freed)} freed")
    return 0


def _with_packages(action: Callable[[PackageManager], Awaitable[T]]) -> T:
    async def run() -> T:
        manager = PackageManager(load_settings())
        try:
            return await action(manager)
        finally:
            await manager.close()

    try:
        return event_loop.run_async(run())
    except OSError as error:
        obstacle = errors.explain_home_error(error)
        why = obstacle or f"{error.strerror}: {error.filename}"
        remedy = errors.HOME_REMEDY if obstacle else None
        raise HutchError(f"The package store cannot be used: {why}.", remedy=remedy) from None


def _print_packages(packages: list[PackageInfo]) -> None:
    headers = ("PACKAGE", "VERSION", "SIZE", "FILES", "LAST USED", "ALSO")
    rows = [
        (
            package.name,
            package.version,
            _format_size(package.size),
            str(package.files),
            console.format_age(package.used),
            ", ".join(package.known_as),
        )
        for package in packages
    ]
    console.print_table(headers, rows)


def _format_size(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


# --- hutch packages describe ---


class PackageDescription(msgspec.Struct, frozen=True):
    """A package, the descriptions of its tools, and the reasons why other tools could not be described."""

    package: Package
    names: list[str]
    """Names of all tools."""
    tools: list[ToolDescription]
    failures: list[ToolFailure]


def describe_package(package: str, name: str | None, *, env: Sequence[str], json: bool) -> int:
    """Prints the descriptions of a package's tools. Returns 1 if any tool cannot be described."""
    settings = load_project_settings(ONE_SHOT_SETTINGS, current_folder())
    argument, variables = parse_package_argument(package), parse_env(env)
    description = event_loop.run_async(_describe(settings, argument, name, variables))
    _print_description(description, json=json)
    return 1 if description.failures else 0


def list_tools(package: str, *, env: Sequence[str], json: bool) -> int:
    """Prints the tools of a package and an example command, for a user who did not name a tool. Returns 2."""
    settings = load_project_settings(ONE_SHOT_SETTINGS, current_folder())
    argument, variables = parse_package_argument(package), parse_env(env)
    description = event_loop.run_async(_describe(settings, argument, None, variables))
    # Tools without a description of their parameters can be run, too.
    others = [failure for failure in description.failures if failure.code != "schema_unavailable"]
    _print_description(msgspec.structs.replace(description, failures=others), json=json)
    if not description.names:
        return 1
    names = ", ".join(description.names)
    console.print_note(f"NAME: expected one of {names}; for example {_example(package, description)}")
    return 2


def _example(package: str, description: PackageDescription) -> str:
    from hutch.conformance.tpmjs.health_check import minimal_params

    name, params = description.names[0], "{}"
    if description.tools:
        tool = description.tools[0]
        name, params = tool.name, encode_value(minimal_params({"inputSchema": tool.input_schema})).decode()
    return f"hutch tool {shlex.quote(package)} {shlex.quote(name)} --params {shlex.quote(params)}"


def _print_description(description: PackageDescription, *, json: bool) -> None:
    if json:
        name_and_version = {"name": description.package.name, "version": description.package.version}
        print_json(encode_value({**name_and_version, "tools": description.tools}))
    elif description.tools:
        console.print_text("\n".join(_format_description(description)))
    for tool in description.tools:
        for warning in tool.warnings or []:
            console.print_note(f"warning: {warning}")
    for failure in description.failures:
        console.print_note(describe_failure(failure))


async def _describe(
    settings: Settings, argument: PackageArgument, name: str | None, env: dict[str, str]
) -> PackageDescription:
    async with open_app(settings) as app, open_package(app, argument) as package:
        if name is not None:
            return await _describe_tools(app, package, [name], env)
        if names := [*listed_tools(package)]:
            return await _describe_tools(app, package, names, env)
        listed = await app.tools.list_package(package, _call(package, "", env))
        if isinstance(listed, ToolFailure):
            return PackageDescription(package, [], [], [listed])
        return await _describe_tools(app, package, listed, env)


async def _describe_tools(
    app: App, package: Package, names: list[str], env: dict[str, str]
) -> PackageDescription:
    description = PackageDescription(package, names, [], [])
    for name in names:
        tool, failure = await app.tools.describe_package(package, _call(package, name, env))
        if tool is not None:
            description.tools.append(tool)
        elif failure is not None:
            description.failures.append(failure)
    return description


def _call(package: Package, name: str, env: dict[str, str]) -> PackageToolCall:
    return PackageToolCall(spec=PackageSpec(package.name, package.version), name=name, env=env, caller=CALLER)


def _format_description(description: PackageDescription) -> list[str]:
    lines = [f"{description.package.name}@{description.package.version}"]
    for tool in description.tools:
        lines += ["", tool.name]
        lines += [f"  {line}" for line in tool.description.splitlines()]
        lines += _format_parameters(tool.input_schema)
        lines += _format_health_check(tool.health_check)
    return lines


def _format_health_check(check: HealthCheck | msgspec.UnsetType) -> list[str]:
    if isinstance(check, msgspec.UnsetType):
        return []
    if check.skip_execution:
        return ["  health check: imports the tool and does not call it"]
    params = "minimal parameters" if check.test_params is None else encode_value(check.test_params).decode()
    cleanup = f", then {', '.join(step.tool for step in check.cleanup)}" if check.cleanup else ""
    return [f"  health check: calls the tool with {params}{cleanup}"]


def _format_parameters(schema: dict[str, Any]) -> list[str]:
    """Formats top-level parameters, one per line. Nested parameters are shown only with --json."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return []
    required_names = required if isinstance(required, list) else []
    rows = [
        (name, _type_name(part), _presence(part, name in required_names), _one_line_description(part))
        for name, part in properties.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    return ["    " + "  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows]


def _presence(schema: object, is_required: bool) -> str:
    """Says whether a parameter is required, or which default it has."""
    if is_required:
        return "required"
    if not isinstance(schema, dict) or "default" not in schema:
        return ""
    return f"default {cut(encode_value(schema['default']).decode(), 40)}"


def _type_name(schema: object) -> str:
    if not isinstance(schema, dict):
        return "any"
    kind, choices = schema.get("type"), schema.get("enum")
    if isinstance(choices, list):
        return " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    return kind if isinstance(kind, str) else "any"


def _one_line_description(schema: object) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return " ".join(text.split()) if isinstance(text, str) else ""
