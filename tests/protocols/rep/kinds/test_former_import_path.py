"""Imports from the former module of step kinds still work."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from hutch import step_kinds
from hutch.protocols.rep.kinds.former_import_path import NEW_PATH, OLD_PATH, allow_old_path


@pytest.fixture(autouse=True)
def restored_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


def test_old_module_has_the_public_names_and_warns() -> None:
    allow_old_path()
    with pytest.warns(DeprecationWarning, match=f"import {NEW_PATH}") as warnings:
        module = import_module(OLD_PATH)
    assert len(warnings) == 1
    assert all(getattr(module, name) is getattr(step_kinds, name) for name in step_kinds.__all__)


def test_old_module_does_not_exist_before_an_extension_is_loaded() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module(OLD_PATH)


def test_no_other_old_module_can_be_imported() -> None:
    allow_old_path()
    with pytest.raises(ModuleNotFoundError):
        import_module("hutch.doors.execbox")
