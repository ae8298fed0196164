"""What is behind `hutch packages`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.forbidden import forbidden
from tests.npm import registry

from hutch.cli.packages import add_packages, list_packages, prune_packages, remove_packages
from hutch.errors import HutchError, InvalidPackage, SettingError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUTCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_package_is_added_listed_and_removed(
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


def test_an_empty_shelf_says_how_to_fill_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_packages(json=False) == 0
    assert "hutch packages add NAME" in capsys.readouterr().err
    assert list_packages(json=True) == 0
    assert capsys.readouterr().out == "[]\n"


def test_what_cannot_be_had_is_told_and_the_others_are_added(
    npm: registry.Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    npm.publish("made-up")
    assert add_packages(["absent", "made-up"]) == 1
    told = capsys.readouterr()
    assert "hutch: There is no package absent in the registry." in told.err
    assert told.out.startswith("made-up@1.0.0")


def test_what_is_no_package_is_refused_before_anything_is_done(npm: registry.Registry) -> None:
    npm.publish("made-up")
    with pytest.raises(InvalidPackage):
        add_packages(["made-up", "../evil"])
    assert npm.requests == []


def test_removing_what_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert remove_packages(["absent", "absent@^1"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "hutch: absent is not on the shelf",
        "hutch: absent@^1 is not on the shelf",
    ]


def test_pruning_tells_what_it_removed(
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


def test_a_home_that_cannot_be_written_is_told(npm: registry.Registry, home: Path) -> None:
    npm.publish("made-up")
    home.mkdir()
    (home / "npm").write_text("in the way")
    with pytest.raises(HutchError, match="The shelf cannot be used"):
        remove_packages(["made-up"])


@pytest.mark.parametrize("place", [".", "npm", "npm/packages"])
def test_a_shelf_that_is_no_folder_is_not_called_empty(home: Path, place: str) -> None:
    (home / place).parent.mkdir(parents=True, exist_ok=True)
    (home / place).write_text("in the way")
    for action in (lambda: list_packages(json=True), lambda: prune_packages(days=30)):
        with pytest.raises(HutchError, match=r"is a file, where a folder should be.*Set HUTCH_HOME"):
            action()


@pytest.mark.parametrize("place", [".", "npm/packages", "npm/packages/made-up/1.0.0.json"])
def test_a_shelf_of_another_user_is_not_called_empty(npm: registry.Registry, home: Path, place: str) -> None:
    npm.publish("made-up")
    add_packages(["made-up"])
    with forbidden(home / place), pytest.raises(HutchError, match=r"is not for this user.*Set HUTCH_HOME"):
        list_packages(json=False)


def test_a_package_for_the_shelf_of_another_user_is_told_what_is_in_the_way(
    npm: registry.Registry, home: Path
) -> None:
    npm.publish("made-up")
    add_packages(["made-up"])
    with forbidden(home), pytest.raises(HutchError, match=r"cannot be installed: .* is not for this user"):
        add_packages(["made-up"])


def test_progress_is_one_line_on_a_terminal(
    npm: registry.Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.publish("made-up")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert add_packages(["made-up"]) == 0
    told = capsys.readouterr().err
    assert "\n" not in told
    assert "made-up@latest: downloading package 1" in told
    assert told.endswith("\r\x1b[K")
