"""The documentation matches the code, and its links work."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from pathlib import Path

import click
import msgspec
import pytest
from packaging.requirements import Requirement
from tests.support.metrics import exported_families

from hutch.cli.commands import hutch
from hutch.errors import WIRE_CODES
from hutch.sandbox.runner.profile import ENGINES
from hutch.session.messages import Done, Execute, Log, Options, Started, ToolCall, WireError
from hutch.settings import PROJECT_SETTINGS, Settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def text(page: str) -> str:
    return (DOCS / page).read_text()


def section(page: str, title: str) -> str:
    """Returns the text of a section, up to the next heading of level 1 or 2."""
    found = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^##? |\Z)", text(page), re.M | re.S)
    assert found is not None, f"docs/{page} has no section {title!r}"
    return found[2]


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def names(table: str) -> list[str]:
    """Returns the first column of a table."""
    return [row[0].strip("` ") for row in rows(table)]


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub generates for the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_are_valid(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = [page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")]
    assert [page for page in pages if f"({page})" not in readme] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_page_starts_with_what_it_is_for(page: Path) -> None:
    title, empty, first = page.read_text().split("\n", 3)[:3]
    assert title.startswith("# ")
    assert empty == ""
    assert re.match(r"[A-Z`].{40,}", first), first


def test_architecture_lists_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    dependencies = [
        *project["dependencies"],
        *extras["cluster"],
        *extras["mcp"],
        *extras["otel"],
        *extras["server"],
    ]
    required = {Requirement(dependency).name for dependency in dependencies} - {"hutch"}
    listed = re.findall(r"pypi\.org/project/([\w.-]+)", section("architecture.md", "Libraries"))
    assert set(listed) == required


def can_be_resolved(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_names_in_the_walks_through_each_protocol_exist() -> None:
    walks = section("architecture.md", "One request through each protocol")
    found = 0
    for protocol, walk in re.findall(r"^### (\w+)(.*?)(?=^### |\Z)", walks, re.M | re.S):
        packages = ["hutch", f"hutch.protocols.{protocol.lower()}"]
        for name in re.findall(r"`([a-z_]\w*(?:\.\w+)+)`", walk):
            possible = [f"{package}.{name}" for package in packages]
            if any(can_be_resolved(each.removesuffix(name) + name.split(".")[0]) for each in possible):
                found += 1
                assert any(map(can_be_resolved, possible)), f"{protocol}: {name}"
    assert found > 80


def test_operations_lists_every_setting_with_its_default() -> None:
    def shown(value: object) -> str:
        if value in (None, (), {}):
            return "none"
        if isinstance(value, bool):
            return f"`{value}`".lower()
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"

    documented = {row[0].strip("`"): row[1] for row in rows(section("operations.md", "Settings"))}
    defaults = Settings()
    expected = {name: shown(getattr(defaults, name)) for name in Settings.__struct_fields__}
    expected["quickjs_processes"] = "the number of cores"
    assert documented == expected


def test_operations_lists_the_settings_of_a_project() -> None:
    [paragraph] = re.findall(r"\*\*A project's file\.\*\*.*?\n\n", text("operations.md"), re.S)
    assert tuple(re.findall(r"`(\w+_\w+)`", paragraph)) == PROJECT_SETTINGS


def test_execbox_lists_every_limit_with_its_default_and_maximum() -> None:
    table = section("execbox.md", "Limits")
    limits = [name for name in Settings.__struct_fields__ if name.startswith("max_")]
    other = {
        "max_log_lines",
        "max_log_chars",
        "max_processes",
        "max_connections",
        "max_connections_per_address",
        "max_processes_per_owner",
        "max_body_bytes",
        "max_tools",
        "max_tools_per_caller",
        "max_flows",
        "max_async_runs",
        "max_queued_runs_per_owner",
        "max_spares",
        "max_package_bytes",
        "max_package_files",
        "max_fetch_bytes",
        "max_fetch_body_bytes",
        "max_fetch_redirects",
        "max_fetch_requests",
        "max_ability_chars",
        "max_runs_bytes",
        "max_record_bytes",
        "max_mcp_sessions",
        "max_mcp_sessions_per_user",
    }
    assert [name for name in limits if f"`{name}`" not in table and name not in other] == []
    numbers = {row[0]: (row[2].replace(" ", ""), row[3].replace(" ", "")) for row in rows(table)}
    settings = Settings()
    assert numbers["time"] == (f"{settings.timeout_ms}ms", f"{settings.max_timeout_ms}(`max_timeout_ms`)")
    assert numbers["memory"][0] == f"{settings.memory_limit_bytes // 2**20}MiB"
    assert numbers["log lines"] == (
        f"{settings.max_log_lines}",
        f"{settings.max_log_lines_ceiling}(`max_log_lines_ceiling`)",
    )
    assert numbers["log characters"][1] == f"{settings.max_log_chars_ceiling}(`max_log_chars_ceiling`)"


def test_operations_lists_exactly_the_metrics() -> None:
    assert set(names(section("operations.md", "Metrics"))) == set(exported_families())


def test_execbox_lists_exactly_the_wire_codes() -> None:
    assert set(names(section("execbox.md", "Error codes"))) == WIRE_CODES


def test_execbox_names_every_engine_and_every_extension_field() -> None:
    documented = section("execbox.md", "Extensions")
    standard = {"timeoutMs", "memoryLimitBytes", "maxLogLines", "maxLogChars"}
    extended = {field.encode_name for field in msgspec.structs.fields(Options)} - standard
    extended |= {field.encode_name for field in msgspec.structs.fields(WireError)} - {"code", "message"}
    extended |= {field.encode_name for field in msgspec.structs.fields(ToolCall)} & {"id"}
    extended |= {field.encode_name for field in msgspec.structs.fields(Done)} & {"logsTruncated"}
    extended |= {field.encode_name for field in msgspec.structs.fields(Started)}
    extended |= {field.encode_name for field in msgspec.structs.fields(Execute)} & {"inputs"}
    extended |= {field.encode_name for field in msgspec.structs.fields(Log)}
    assert [name for name in sorted(extended) if f"`{name}`" not in documented] == []
    assert [engine for engine in ENGINES if f'"{engine}"' not in documented] == []


def test_every_command_is_on_the_page_about_the_command_line() -> None:
    named = set(re.findall(r"^hutch (\w+)", text("cli.md"), re.M))
    assert [name for name in hutch.commands if name not in named] == []


def test_subcommands_are_on_the_page_about_the_command_line() -> None:
    page = text("cli.md")
    groups = {name: command for name, command in hutch.commands.items() if isinstance(command, click.Group)}
    missing = [
        f"hutch {name} {sub}"
        for name, group in groups.items()
        for sub in group.commands
        if sub != "cache" and not re.search(rf"hutch {name} .*\b{sub}\b", page)
    ]
    assert missing == []


def test_readme_has_at_most_200_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_architecture_lists_every_npm_package_of_the_guest() -> None:
    imports = msgspec.json.decode((ROOT / "src/hutch/guest/deno.json").read_bytes())["imports"]
    packages = {name.rstrip("/") for name in imports}
    libraries = section("architecture.md", "Libraries")
    assert set(re.findall(r"npmjs\.com/package/([\w@/-]+)", libraries)) == packages
