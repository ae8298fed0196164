"""Choice of the runtime, and the poll interval."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hutch.errors import SettingError
from hutch.protocols.rep.ir.source import project
from hutch.protocols.rep.orchestrator.orchestrator import MAX_POLL_SECONDS, PollInterval
from hutch.protocols.rep.orchestrator.runtime_choice import (
    LanguageMismatch,
    builtin_runtime,
    choose_runtime,
    from_arguments,
    from_command_line,
)


def test_builtin_runtime_without_a_project(tmp_path: Path) -> None:
    for name in (None, "hutch", "python"):
        assert choose_runtime(name, None, tmp_path, project.find) == builtin_runtime(tmp_path)


def test_runtime_of_the_project(tmp_path: Path) -> None:
    project.bind(tmp_path, "fast", language="rust", executor_path="bin/fast")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fast").touch()
    for name in (None, "fast"):
        choice = choose_runtime(name, None, tmp_path, project.find)
        assert (choice.engine, choice.command, choice.folder) == (
            "fast",
            (str(tmp_path / "bin/fast"),),
            tmp_path,
        )
        assert not choice.is_builtin
    assert choose_runtime("hutch", None, tmp_path, project.find) == builtin_runtime(tmp_path)
    with pytest.raises(SettingError, match=r"no runtime 'slow' here; expected hutch or fast"):
        choose_runtime("slow", None, tmp_path, project.find)


def test_project_without_a_program_is_refused(tmp_path: Path) -> None:
    project.bind(tmp_path, "fast")
    with pytest.raises(SettingError, match="the runtime fast has no executor_path"):
        choose_runtime(None, None, tmp_path, project.find)


def test_language_mismatch_is_refused(tmp_path: Path) -> None:
    project.bind(tmp_path, "fast", language="rust", plugins_language="c", executor_path="fast")
    with pytest.raises(LanguageMismatch, match="hutch init") as raised:
        choose_runtime(None, None, tmp_path, project.find)
    assert 1000 <= raised.value.wire["code"] < 2000  # type: ignore[operator]
    assert choose_runtime(None, "other", tmp_path, project.find).engine == "other", (
        "an explicit executor is allowed, for diagnosis"
    )


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("./bin/fast --verbose", "fast"),
        ("python3 -u 'my runtime.py'", "my-runtime"),
        ("python3.12 runtimes/mock_engine.py x", "mock_engine"),
        ("/usr/bin/env node server.js", "node"),
        ("é", "executor"),
        ("x" * 100, "x" * 64),
    ],
)
def test_name_of_a_command_is_a_valid_file_name(command: str, engine: str) -> None:
    assert project.check_engine(from_command_line(command).engine) == engine


def test_given_name_is_used() -> None:
    assert from_command_line("python x.py", "mine").engine == "mine"


def test_python_files_are_run_with_python() -> None:
    assert from_arguments(["run.py", "a b"]).command == (sys.executable, "run.py", "a b")


@pytest.mark.parametrize("command", ["", "  ", "'", 'a "b'])
def test_invalid_command_is_refused(command: str) -> None:
    with pytest.raises(SettingError, match="--executor"):
        from_command_line(command)


def test_poll_interval_grows_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("hutch.protocols.rep.orchestrator.orchestrator.monotonic", lambda: now)
    interval = PollInterval()
    assert interval.next(busy=False) == 0.002
    now += 1
    assert interval.next(busy=False) == pytest.approx(0.1)
    assert interval.next(busy=True) == pytest.approx(0.01)
    now += 60
    assert interval.next(busy=False) == MAX_POLL_SECONDS
    assert interval.next(busy=True) == pytest.approx(0.01)
