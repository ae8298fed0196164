"""The documents say what the code does, and lead where they say."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families

from hutch.cli.commands import hutch
from hutch.errors import WIRE_CODES
from hutch.kernel import Execution
from hutch.metrics import RunCounters, exposition
from hutch.sandbox.pool import Pool
from hutch.sandbox.profile import ENGINES, profile_for
from hutch.session.host import Outcome
from hutch.session.messages import Done, Options, ToolCall, WireError
from hutch.settings import Settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])


def text(page: str) -> str:
    return (DOCS / page).read_text()


def section(page: str, title: str) -> str:
    """What stands under a heading, up to the next of its level or above."""
    found = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^##? |\Z)", text(page), re.M | re.S)
    assert found is not None, f"docs/{page} has no section {title!r}"
    return found[2]


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def names(table: str) -> list[str]:
    """The first column."""
    return [row[0].strip("` ") for row in rows(table)]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub links to them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
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
    assert [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in readme] == []


def test_readme_says_what_every_dependency_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {Requirement(each).name for each in project["dependencies"]}
    table = (ROOT / "README.md").read_text().partition("## Dependencies")[2].partition("\n## ")[0]
    assert set(re.findall(r"pypi\.org/project/([\w-]+)", table)) == wanted


def test_operations_lists_every_setting_with_its_default() -> None:
    def shown(value: object) -> str:
        if value in (None, (), {}):
            return "none"
        if isinstance(value, bool):
            return f"`{value}`".lower()
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"

    documented = {row[0].strip("`"): row[1] for row in rows(section("operations.md", "Settings"))}
    plain = Settings()
    expected = {name: shown(getattr(plain, name)) for name in Settings.__struct_fields__}
    expected["quickjs_processes"] = "the number of cores"
    assert documented == expected


def test_execbox_lists_every_limit_with_its_default_and_its_ceiling() -> None:
    table = section("execbox.md", "Limits")
    limits = [each for each in Settings.__struct_fields__ if each.startswith(("most_", "max_"))]
    beside = {"max_log_lines", "max_log_chars", "max_processes"}
    beside |= {
        "max_body_bytes",
        "max_tools",
        "max_flows",
        "max_spares",
        "max_package_bytes",
        "max_package_files",
    }
    assert [each for each in limits if f"`{each}`" not in table and each not in beside] == []
    numbers = {row[0]: (row[2].replace(" ", ""), row[3].replace(" ", "")) for row in rows(table)}
    settings = Settings()
    assert numbers["time"] == (f"{settings.timeout_ms}ms", f"{settings.most_timeout_ms}(`most_timeout_ms`)")
    assert numbers["memory"][0] == f"{settings.memory_limit_bytes // 2**20}MiB"
    assert numbers["log lines"] == (
        f"{settings.max_log_lines}",
        f"{settings.most_log_lines}(`most_log_lines`)",
    )
    assert numbers["log characters"][1] == f"{settings.most_log_chars}(`most_log_chars`)"


def test_operations_lists_every_metric_and_no_other() -> None:
    pool = Pool(Settings(), launch=lambda _: pytest.fail("nothing is to be started"))
    counters = RunCounters()
    counters.count(Execution(code="", profile=profile_for("quickjs")), Outcome(ok=True))
    families = text_string_to_metric_families(exposition(counters, pool).decode())
    told = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert set(names(section("operations.md", "Metrics"))) == told


def test_execbox_lists_the_codes_of_the_wire_and_no_other() -> None:
    assert set(names(section("execbox.md", "Error codes"))) == WIRE_CODES


def test_execbox_names_every_engine_and_every_field_that_is_ours() -> None:
    ours = section("execbox.md", "What is ours")
    plain = {"timeoutMs", "memoryLimitBytes", "maxLogLines", "maxLogChars"}
    extended = {field.encode_name for field in msgspec.structs.fields(Options)} - plain
    extended |= {field.encode_name for field in msgspec.structs.fields(WireError)} - {"code", "message"}
    extended |= {field.encode_name for field in msgspec.structs.fields(ToolCall)} & {"id"}
    extended |= {field.encode_name for field in msgspec.structs.fields(Done)} & {"logsTruncated"}
    assert [each for each in sorted(extended) if f"`{each}`" not in ours] == []
    assert [each for each in ENGINES if f'"{each}"' not in ours] == []


def test_architecture_names_every_module_of_every_room() -> None:
    tree = section("architecture.md", "The rooms")
    package = ROOT / "src/hutch"
    modules = [
        path for path in package.rglob("*.py") if not path.stem.startswith("_") and "cli" not in path.parts
    ]
    inside_doors = {"serve", "websocket"}
    assert [
        str(path.relative_to(package))
        for path in modules
        if not re.search(rf"\b{path.stem}\b", tree) and path.stem not in inside_doors
    ] == []


def test_readme_names_every_command() -> None:
    told = (ROOT / "README.md").read_text()
    also = re.findall(r"also ((?:\w+(?:, )?)+)$", told, re.M)
    named = {*re.findall(r"^hutch (\w+)", told, re.M), *", ".join(also).split(", ")}
    assert [name for name in hutch.commands if name not in named] == []


# From the ground up: what stands on a line may import what stands on it or above, as architecture.md says.
STOREYS = (
    {"errors", "settings", "home", "_version"},
    {"session", "egress", "store"},
    {"vault"},
    {"sandbox"},
    {"npm", "upstream"},
    {"kernel", "programs", "runs", "metrics", "logs"},
    {"doors"},
    {"app", "api", "keeping", "remote", "ways"},
    {"cli", "__init__", "__main__"},
)


def test_imports_go_one_way_as_architecture_says() -> None:
    package = ROOT / "src/hutch"
    storey = {room: number for number, rooms in enumerate(STOREYS) for room in rooms}
    upward = []
    for path in package.rglob("*.py"):
        place = path.relative_to(package)
        room = place.parts[0].removesuffix(".py")
        for name in runtime_imports(path):
            if storey[name] > storey[room]:
                upward.append(f"{place} imports {name}")
    assert upward == []


def runtime_imports(path: Path) -> set[str]:
    """The rooms that a module imports, early or late, but not for its type hints alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "hutch":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hutch."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("hutch.")}
    return found


def test_readme_names_every_npm_package_in_the_guest() -> None:
    imports = msgspec.json.decode((ROOT / "src/hutch/guest/deno.json").read_bytes())["imports"]
    readme = (ROOT / "README.md").read_text()
    packages = {each.rstrip("/") for each in imports}
    assert set(re.findall(r"npmjs\.com/package/([\w@/-]+)", readme)) == packages
