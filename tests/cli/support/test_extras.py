"""Error messages of commands that need an extra which is not installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hutch.cli.support.extras import _EXTRAS, missing_extra

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize(
    ("module", "command", "extra"), [("uvicorn", "serve", "server"), ("httpx2", "tools list", "mcp")]
)
def test_command_without_its_packages_names_the_extra(module: str, command: str, extra: str) -> None:
    script = f"import sys; sys.modules[{module!r}] = None; from hutch.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *command.split()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"hutch: This command needs the package {module}. Install it with: pip install 'hutch[{extra}]'\n"
    )


def test_other_missing_modules_are_errors_of_hutch() -> None:
    assert missing_extra(ModuleNotFoundError("no", name="hutch.nothing")) is None
    assert missing_extra(ModuleNotFoundError("no")) is None


def test_every_package_of_an_extra_has_a_message() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    for extra in ("mcp", "server"):
        names = {Requirement(line).name.replace("-", "_") for line in extras[extra]} - {"hutch"}
        assert names <= {module for module, of in _EXTRAS.items() if of == extra}
