"""Commands with an empty home, as processes or in this process."""

from __future__ import annotations

import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.cli.commands.vault_helpers import Command
from tests.support.processes import hutch

from hutch import cli


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def shell(home: Path) -> Command:
    """Runs commands as processes, with an empty home."""

    def run(*arguments: str, input: str = "", **env: str) -> CompletedProcess[str]:
        return hutch(*arguments, input=input, env={"HUTCH_HOME": str(home), **env})

    return run


@pytest.fixture
def command(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs commands in this process, which is faster."""

    def run(*arguments: str, input: str = "", **env: str) -> CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["hutch", *arguments])
            patch.setattr(sys, "stdin", TextIOWrapper(BytesIO(input.encode())))
            for name, value in {"HUTCH_HOME": str(home), **env}.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        assert isinstance(ended.value.code, int)
        return CompletedProcess(arguments, ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def bo(command: Command) -> str:
    """Adds a user and returns its id."""
    done = command("user", "add", "bo")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
