"""What is said of a home that cannot be used."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hutch import home


def obstacle_to(file: Path) -> str | None:
    with pytest.raises(OSError, match=str(file)) as caught:
        file.mkdir(parents=True)
    return home.obstacle(caught.value)


def test_a_file_in_the_place_of_the_home_is_named_whatever_was_wanted_of_it(tmp_path: Path) -> None:
    file = tmp_path / "home"
    file.write_text("")
    for wanted in (file, file / "npm", file / "npm" / "locks"):
        assert obstacle_to(wanted) == f"{file} is a file, where a folder should be"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_what_is_forbidden_is_the_nearest_that_there_is(tmp_path: Path, number: int) -> None:
    error = OSError(number, "Permission denied", str(tmp_path / "npm" / "locks"))
    assert home.obstacle(error) == f"{tmp_path} is not for this user to read and write"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full", "/"), OSError(errno.EACCES, "x"), OSError()])
def test_of_other_faults_the_home_is_not_accused(error: OSError) -> None:
    assert home.obstacle(error) is None
