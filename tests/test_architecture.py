"""Layers of the code: packages and modules import only from lower layers, and protocols do not import each
other.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src/hutch"

# Layers of packages in "hutch", the lowest first. A package may import packages of its own layer and of lower
# layers.
LAYERS: Sequence[set[str]] = (
    {
        "_version",
        "errors",
        "owner_shares",
        "problems",
        "settings",
        "streams",
        "strict_json",
        "tasks",
        "telemetry",
        "text",
    },
    {"egress", "session", "store"},
    {"vault"},
    {"child_process", "sandbox"},
    {"mcp_client", "npm"},
    {"kernel", "logs"},
    {"http"},
    {"queue"},
    {"cluster", "console", "protocols", "step_kinds"},
    {"conformance"},
    {"api", "app"},
    {"__init__", "__main__", "cli"},
)

# Layers inside of packages, the lowest first. A module that is not listed may import all modules of its
# package, and all modules of the package may import it.
INNER_LAYERS: dict[str, Sequence[set[str]]] = {
    "egress": ({"addresses", "policy", "redaction", "resolver"}, {"client", "proxy"}),
    "sandbox": ({"deno_binary", "temp_dirs"}, {"jail"}, {"runner", "selftest"}, {"pool"}),
    "session": ({"schema", "tools"}, {"host"}, {"multiplexer", "runner"}),
    "store": ({"models"}, {"backends"}, {"tables"}, {"store"}),
    "cli": ({"support"}, {"flow", "runtime", "vault"}, {"commands"}),
    "protocols.rep": ({"jsonrpc"}, {"ir"}, {"drawing", "kinds", "orchestrator", "runtime"}, {"server"}),
    "protocols.toolscript": ({"checker", "jail_server"}, {"codegen", "gateway"}, {"execute"}),
}

# For each protocol, the other protocols that it may import. Only flows and MCP tools run other protocols.
PROTOCOL_IMPORTS: dict[str, set[str]] = {
    "abilities": set(),
    "execbox": set(),
    "mcp": {"abilities", "toolscript"},
    "rep": {"abilities", "toolscript", "tpmjs"},
    "queue": set(),
    "runs": set(),
    "toolscript": set(),
    "tpmjs": set(),
}


def modules(package: str = "") -> Iterator[tuple[str, Path]]:
    """Yields the modules below a package as dotted names without "hutch.", with their paths."""
    for path in PACKAGE.joinpath(*filter(None, package.split("."))).rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts), path


def runtime_imports(path: Path) -> frozenset[str]:
    """Returns the modules of hutch that a module imports at run time. Lazy imports count. Imports for type
    hints do not count.
    """
    first, lazy = all_imports(path)
    return first | lazy


@functools.cache
def all_imports(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Returns two sets of modules of hutch: those that the module imports when it is loaded, and those that
    the module's functions import lazily.
    """
    first: set[str] = set()
    lazy: set[str] = set()

    def visit(statements: Sequence[ast.AST], found: set[str]) -> None:
        for node in statements:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hutch":
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names if alias.name.startswith("hutch."))
            in_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for name in ("body", "handlers", "cases", "orelse", "finalbody"):
                if name != "body" or not _is_for_type_hints(node):
                    visit(getattr(node, name, ()), lazy if in_function else found)

    visit(ast.parse(path.read_text()).body, first)
    return _below_hutch(first), _below_hutch(lazy)


def _is_for_type_hints(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _below_hutch(names: set[str]) -> frozenset[str]:
    return frozenset(name.removeprefix("hutch.") for name in names)


def upward_imports(package: str, layers: Sequence[set[str]]) -> list[str]:
    prefix = f"{package}." if package else ""
    layer_of = {name: number for number, layer in enumerate(layers) for name in layer}
    found = []
    for module, path in modules(package):
        importer = layer_of.get(module.removeprefix(prefix).split(".")[0])
        for name in sorted(runtime_imports(path)):
            if not name.startswith(prefix):
                continue
            imported = layer_of.get(name.removeprefix(prefix).split(".")[0])
            if importer is not None and imported is not None and imported > importer:
                found.append(f"{module} imports {name}")
    return found


def test_every_top_level_name_has_a_layer() -> None:
    names = {module.split(".")[0] for module, _ in modules()} - {"guest"}
    assert names - {name for layer in LAYERS for name in layer} == set()


def test_imports_between_packages_go_down() -> None:
    assert upward_imports("", LAYERS) == []


@pytest.mark.parametrize("package", INNER_LAYERS)
def test_imports_inside_a_package_go_down(package: str) -> None:
    assert upward_imports(package, INNER_LAYERS[package]) == []


@pytest.mark.parametrize("protocol", PROTOCOL_IMPORTS)
def test_protocol_imports_no_other_protocol(protocol: str) -> None:
    allowed = PROTOCOL_IMPORTS[protocol] | {protocol}
    found = [
        f"{module} imports {name}"
        for module, path in modules(f"protocols.{protocol}")
        for name in sorted(runtime_imports(path))
        if name.startswith("protocols.") and name.split(".")[1] not in allowed
    ]
    assert found == []


def test_every_protocol_has_a_rule() -> None:
    assert {path.name for path in (PACKAGE / "protocols").iterdir() if path.is_dir()} - {"__pycache__"} == {
        *PROTOCOL_IMPORTS
    }


def test_only_the_composition_root_and_the_command_line_know_the_app() -> None:
    users = [
        module
        for module, path in modules()
        if any(name.split(".")[0] == "app" for name in runtime_imports(path))
    ]
    assert {module.split(".")[0] for module in users} <= {"api", "app", "cli"}


def test_no_folder_has_more_than_15_modules() -> None:
    sizes = {folder: len([*folder.glob("*.py")]) - 1 for folder in {p.parent for p in PACKAGE.rglob("*.py")}}
    assert {str(folder): size for folder, size in sizes.items() if size > 15} == {}


def test_each_module_can_be_imported_first() -> None:
    """Checks that the imports of modules while they are loaded have no cycles. So the order of imports does
    not matter.
    """
    known = {module.removesuffix(".__init__"): path for module, path in modules()}

    def needed(module: str, path: Path) -> set[str]:
        # An imported name `hutch.a.b` may be a module, or a name `b` in the module `hutch.a`.
        imported = {name if name in known else name.rpartition(".")[0] for name in all_imports(path)[0]}
        # Python loads the packages that contain a module before the module itself.
        packages = {package for name in imported for package in packages_of(name)} - {
            module,
            *packages_of(module),
        }
        return (imported | packages) & known.keys()

    def packages_of(module: str) -> set[str]:
        parts = module.split(".")
        return {".".join(parts[:length]) for length in range(1, len(parts))}

    [*TopologicalSorter({module: needed(module, path) for module, path in known.items()}).static_order()]
