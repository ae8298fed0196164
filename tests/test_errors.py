"""Error messages about a HUTCH_HOME that Hutch cannot use."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hutch import errors


def test_position_is_added_only_to_messages_without_one() -> None:
    def shown(message: str) -> str:
        return str(errors.ExecutionError("runtime_error", message, "Error", 1, 2))

    assert shown("no") == "no (line 1, column 2)"
    typed = "error TS2322: Wrong.\n  code.ts:1:2\n    1 | x\n      | ^\n  tools.f(): Promise<number>"
    assert shown(typed) == typed


def explain_mkdir_error(file: Path) -> str | None:
    with pytest.raises(OSError, match=str(file)) as caught:
        file.mkdir(parents=True)
    return errors.explain_home_error(caught.value)


def test_file_in_place_of_the_home_is_named(tmp_path: Path) -> None:
    file = tmp_path / "home"
    file.write_text("")
    for wanted in (file, file / "npm", file / "npm" / "locks"):
        assert explain_mkdir_error(wanted) == f"{file} is a file, not a folder"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_nearest_existing_path_is_named_if_access_is_forbidden(tmp_path: Path, number: int) -> None:
    error = OSError(number, "Permission denied", str(tmp_path / "npm" / "locks"))
    assert errors.explain_home_error(error) == f"{tmp_path} cannot be read and written by this user"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full", "/"), OSError(errno.EACCES, "x"), OSError()])
def test_other_errors_are_not_explained(error: OSError) -> None:
    assert errors.explain_home_error(error) is None


def test_repr_of_an_execution_error_has_its_code() -> None:
    error = errors.ExecutionError("tool_error", "no luck", "TypeError", 2, 3)
    assert repr(error) == "ExecutionError('tool_error', 'TypeError: no luck (line 2, column 3)')"
