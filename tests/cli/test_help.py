"""What `hutch` says about itself."""

from __future__ import annotations

import pytest
from tests.processes import hutch

import hutch as package


def test_help_names_every_command_and_gives_an_example() -> None:
    done = hutch("--help")
    assert done.returncode == 0
    for command in ("eval", "runner", "serve", "doctor"):
        assert f"\n  {command}  " in done.stdout
    assert "Example:\n    hutch eval " in done.stdout


@pytest.mark.parametrize("command", ["eval", "runner", "serve", "doctor"])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_explains_itself_with_an_example(command: str, option: str) -> None:
    done = hutch(command, option)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: hutch {command} ")
    assert "Example" in done.stdout


def test_version() -> None:
    assert hutch("--version").stdout == f"hutch {package.__version__}\n"


def test_unknown_command_is_refused() -> None:
    done = hutch("evaluate")
    assert done.returncode == 2
    assert "No such command 'evaluate'" in done.stderr


def test_no_command_shows_the_help_and_fails() -> None:
    done = hutch()
    assert done.returncode == 2
    assert "Commands:" in done.stderr
