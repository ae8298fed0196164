"""Which runtime runs a flow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hutch.doors.rep import project
from hutch.doors.rep.choice import LanguageMismatch, by_command, by_words, choose, own
from hutch.doors.rep.pacing import MOST_SECONDS, Pace
from hutch.errors import SettingError


def test_without_a_project_it_is_ours(tmp_path: Path) -> None:
    for name in (None, "hutch", "python"):
        assert choose(name, None, tmp_path) == own()


def test_projects_own(tmp_path: Path) -> None:
    project.bind(tmp_path, "fast", language="rust", executor_path="bin/fast")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fast").touch()
    for name in (None, "fast"):
        found = choose(name, None, tmp_path)
        assert (found.engine, found.command, found.folder) == (
            "fast",
            (str(tmp_path / "bin/fast"),),
            tmp_path,
        )
        assert not found.is_ours
    assert choose("hutch", None, tmp_path) == own()
    with pytest.raises(
        SettingError, match=r"no runtime 'slow' here; there is hutch, and fast, this project's"
    ):
        choose("slow", None, tmp_path)


def test_project_without_a_program(tmp_path: Path) -> None:
    project.bind(tmp_path, "fast")
    with pytest.raises(SettingError, match="the runtime fast has no executor_path"):
        choose(None, None, tmp_path)


def test_languages_of_two_families(tmp_path: Path) -> None:
    project.bind(tmp_path, "fast", language="rust", plugins_language="c", executor_path="fast")
    with pytest.raises(LanguageMismatch, match="hutch init") as raised:
        choose(None, None, tmp_path)
    assert 1000 <= raised.value.wire["code"] < 2000  # type: ignore[operator]
    assert choose(None, "other", tmp_path).engine == "other", "another, for diagnosis"


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
def test_commands_have_a_name_that_a_file_can_have(command: str, engine: str) -> None:
    assert project.check_engine(by_command(command).engine) == engine


def test_name_that_is_given_counts() -> None:
    assert by_command("python x.py", "mine").engine == "mine"


def test_python_files_are_run_with_python() -> None:
    assert by_words(["run.py", "a b"]).command == (sys.executable, "run.py", "a b")


@pytest.mark.parametrize("command", ["", "  ", "'", 'a "b'])
def test_what_is_no_command(command: str) -> None:
    with pytest.raises(SettingError, match="--executor"):
        by_command(command)


def test_polls_are_quick_at_first_and_then_gentle(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("hutch.doors.rep.pacing.monotonic", lambda: now)
    pace = Pace()
    assert pace.next(busy=False) == 0.002
    now += 1
    assert pace.next(busy=False) == pytest.approx(0.1)
    assert pace.next(busy=True) == pytest.approx(0.01)
    now += 60
    assert pace.next(busy=False) == MOST_SECONDS
    assert pace.next(busy=True) == pytest.approx(0.01)
