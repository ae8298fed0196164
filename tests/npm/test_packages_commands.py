"""Functions behind `hutch packages`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.npm import registry
from tests.support.forbidden import forbidden

from hutch.cli.npm.packages import add_packages, list_packages, prune_packages, remove_packages
from hutch.errors import HutchError, InvalidPackage, SettingError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUTCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_package_is_added_listed_and_removed(
    npm: registry.Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    npm.publish("@made/up", "1.2.0")
    assert add_packages(["@made/up"]) == 0
    added = capsys.readouterr()
    assert added.out.startswith("@made/up@1.2.0  ")
    assert "installing @made/up@latest" in added.err
    assert list_packages(json=False) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["PACKAGE", "VERSION"]
    assert line.split()[:2] == ["@made/up", "1.2.0"]
    assert line.endswith("just now   latest")
    assert list_packages(json=True) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["name"] == "@made/up"
    assert entry["known_as"] == ["latest"]
    assert remove_packages(["@made/up"]) == 0
    assert capsys.readouterr().out == "removed @made/up@1.2.0\n"


def test_empty_list_explains_how_to_add_a_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_packages(json=False) == 0
    assert "hutch packages add NAME" in capsys.readouterr().err
    assert list_packages(json=True) == 0
    assert capsys.readouterr().out == "[]\n"


def test_failed_package_is_reported_and_others_are_added(
    npm: registry.Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    npm.publish("made-up")
    assert add_packages(["absent", "made-up"]) == 1
    captured = capsys.readouterr()
    assert "hutch: There is no package absent in the registry." in captured.err
    assert captured.out.startswith("made-up@1.0.0")


def test_invalid_package_is_rejected_before_anything_is_installed(npm: registry.Registry) -> None:
    npm.publish("made-up")
    with pytest.raises(InvalidPackage):
        add_packages(["made-up", "../evil"])
    assert npm.requests == []


def test_removing_a_missing_package_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert remove_packages(["absent", "absent@^1"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "hutch: absent is not installed",
        "hutch: absent@^1 is not installed",
    ]


def test_pruning_lists_what_it_removed(
    npm: registry.Registry, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    npm.publish("made-up")
    add_packages(["made-up"])
    os.utime(home / "npm" / "packages" / "made-up" / "1.0.0.json", (0, 0))
    capsys.readouterr()
    assert prune_packages(days=30) == 0
    removed, freed = capsys.readouterr().out.splitlines()
    assert removed.startswith("removed made-up@1.0.0, last used")
    assert freed.endswith("freed")
    with pytest.raises(SettingError, match="--days"):
        prune_packages(days=-1)


def test_unwritable_home_is_reported(npm: registry.Registry, home: Path) -> None:
    npm.publish("made-up")
    home.mkdir()
    (home / "npm").write_text("in the way")
    with pytest.raises(HutchError, match="The package store cannot be used"):
        remove_packages(["made-up"])


@pytest.mark.parametrize("path", [".", "npm", "npm/packages"])
def test_file_in_place_of_the_package_folder_is_not_an_empty_list(home: Path, path: str) -> None:
    (home / path).parent.mkdir(parents=True, exist_ok=True)
    (home / path).write_text("in the way")
    for action in (lambda: list_packages(json=True), lambda: prune_packages(days=30)):
        with pytest.raises(HutchError, match=r"is a file, not a folder.*Set HUTCH_HOME"):
            action()


@pytest.mark.parametrize("path", [".", "npm/packages", "npm/packages/made-up/1.0.0.json"])
def test_unreadable_package_folder_is_not_an_empty_list(
    npm: registry.Registry, home: Path, path: str
) -> None:
    npm.publish("made-up")
    add_packages(["made-up"])
    with (
        forbidden(home / path),
        pytest.raises(HutchError, match=r"cannot be read and written by this user.*Set HUTCH_HOME"),
    ):
        list_packages(json=False)


def test_adding_to_an_unreadable_package_folder_is_explained(npm: registry.Registry, home: Path) -> None:
    npm.publish("made-up")
    add_packages(["made-up"])
    with (
        forbidden(home),
        pytest.raises(HutchError, match=r"cannot be installed: .* cannot be read and written by this user"),
    ):
        add_packages(["made-up"])


def test_progress_is_one_line_on_a_terminal(
    npm: registry.Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.publish("made-up")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert add_packages(["made-up"]) == 0
    captured = capsys.readouterr().err
    assert "\n" not in captured
    assert "made-up@latest: downloading package 1" in captured
    assert captured.endswith("\r\x1b[K")
