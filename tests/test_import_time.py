"""Modules that `import hutch` and the commands load at once, and modules that are loaded lazily."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = {
    "deno",
    "docstring_parser",
    "httpx2",
    "jsonschema_rs",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "requests",
    "rich",
    "starlette",
    "structlog",
    "typer",
    "uvicorn",
    "websockets",
}


def modules(code: str) -> set[str]:
    """Returns the modules that are loaded when the program ends."""
    script = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def imported(code: str) -> set[str]:
    """Returns the top-level packages that are loaded when the program ends."""
    return {name.partition(".")[0] for name in modules(code)}


def test_import_loads_no_heavy_package() -> None:
    assert imported("import hutch") & HEAVY == set()


def test_import_is_fast() -> None:
    """The target is 0.15 s, which `make bench` measures. The limit here is higher, because the machine may be
    busy.
    """
    imported("import hutch")
    began = time.monotonic()
    imported("import hutch")
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("module", ["hutch.cli.commands", "hutch.cli.eval", "hutch.app.app"])
def test_command_loads_no_heavy_package(module: str) -> None:
    assert imported(f"import {module}") & HEAVY == set()


def test_server_without_a_cluster_loads_nothing_of_it() -> None:
    loaded = modules(
        "import hutch.cli.serve, hutch.app.metrics, hutch.kernel.kernel, hutch.protocols.tpmjs.execute"
    )
    assert not any(name.split(".")[0] == "nats" or name.startswith("hutch.cluster") for name in loaded)


def test_evaluation_loads_no_heavy_package() -> None:
    code = "import hutch; assert hutch.run_sync('1 + 1').result == 2"
    assert imported(code) & HEAVY <= {"deno"}


@pytest.mark.parametrize("module", ["hutch", "hutch.cli.commands", "hutch.cli.eval", "hutch.app.app"])
def test_packages_that_plain_code_does_not_need_are_not_loaded(module: str) -> None:
    packages = ("hutch.npm", "hutch.egress", "hutch.http", "hutch.protocols", "hutch.store.tables")
    for_tools = ("hutch.session.schema", "hutch.session.tools.functions", "anyio")
    slow = (*packages, *for_tools, "hutch.kernel.error_hints", "hashlib")
    assert [name for name in modules(f"import {module}") if name.startswith(slow)] == []


def test_command_does_not_load_other_commands() -> None:
    code = "from hutch.cli.commands import hutch; hutch.commands['eval']"
    loaded = [name for name in modules(code) if name.startswith("hutch.cli.commands.")]
    assert loaded == ["hutch.cli.commands.code"]


def test_npm_commands_load_no_server() -> None:
    assert imported("import hutch.cli.npm.tool, hutch.cli.npm.packages") & HEAVY == set()
