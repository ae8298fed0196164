"""What `import hutch` and the command bring in, and what they leave until it is needed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = {
    "deno",
    "httpx2",
    "jsonschema_rs",
    "prometheus_client",
    "pydantic",
    "rich",
    "starlette",
    "structlog",
    "typer",
    "uvicorn",
    "websockets",
}


def modules(code: str) -> set[str]:
    """The modules that a program has brought in at its end."""
    script = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def imported(code: str) -> set[str]:
    """The packages of these."""
    return {name.partition(".")[0] for name in modules(code)}


def test_import_leaves_the_heavy_packages_alone() -> None:
    assert imported("import hutch") & HEAVY == set()


def test_import_takes_no_longer_than_many_times_what_is_promised() -> None:
    """0.15 s is the promise; `make bench` measures it."""
    imported("import hutch")
    began = time.monotonic()
    imported("import hutch")
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("module", ["hutch.cli.commands", "hutch.cli.evaluate", "hutch.app"])
def test_command_leaves_the_heavy_packages_alone(module: str) -> None:
    assert imported(f"import {module}") & HEAVY == set()


def test_evaluation_needs_no_heavy_package() -> None:
    code = "import hutch; assert hutch.run_sync('1 + 1').result == 2"
    assert imported(code) & HEAVY <= {"deno"}


@pytest.mark.parametrize("module", ["hutch", "hutch.cli.commands", "hutch.cli.evaluate", "hutch.app"])
def test_rooms_that_code_alone_does_not_need_stay_shut(module: str) -> None:
    rooms = ("hutch.npm", "hutch.egress", "hutch.doors")
    assert [name for name in modules(f"import {module}") if name.startswith(rooms)] == []


@pytest.mark.parametrize("module", ["hutch.cli.tool", "hutch.cli.packages", "hutch.cli.describe"])
def test_tools_by_hand_need_no_server(module: str) -> None:
    assert imported(f"import {module}") & HEAVY == set()
