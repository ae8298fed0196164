"""A registry of made-up packages, and shelves that use it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm import registry

from hutch.npm.shelf import Shelf
from hutch.settings import load

NewShelf = Callable[..., Shelf]


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of how the tester reaches a registry counts."""
    for name in [*os.environ]:
        if name.lower().startswith("npm_config_") or name.lower().endswith("_proxy") or "CERT" in name:
            monkeypatch.delenv(name)
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HOME", str(user))


@pytest.fixture
def npm(plain_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[registry.Registry]:
    """A registry that shelves made by `new_shelf` find."""
    with registry.serving() as served:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", served.url)
        yield served


@pytest.fixture
async def new_shelf(tmp_path: Path) -> AsyncIterator[NewShelf]:
    """Makes shelves with a home of this test's own."""
    made: list[Shelf] = []

    def make(**settings: Any) -> Shelf:
        made.append(Shelf(load({"home": str(tmp_path / "home"), **settings})))
        return made[-1]

    yield make
    for shelf in made:
        await shelf.close()


@pytest.fixture
def shelf(new_shelf: NewShelf) -> Shelf:
    return new_shelf()
