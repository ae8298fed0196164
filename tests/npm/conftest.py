"""Fixtures: a registry of invented packages, and package managers that use it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm import registry

from hutch.npm.packages import PackageManager
from hutch.settings import load_settings

NewPackages = Callable[..., PackageManager]


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes the tester's registry configuration from the environment."""
    for name in [*os.environ]:
        if name.lower().startswith("npm_config_") or name.lower().endswith("_proxy") or "CERT" in name:
            monkeypatch.delenv(name)
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HOME", str(user))


@pytest.fixture
def npm(plain_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[registry.Registry]:
    """A registry for the package managers that `new_packages` creates."""
    with registry.run_registry() as served:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", served.url)
        yield served


@pytest.fixture
async def new_packages(tmp_path: Path) -> AsyncIterator[NewPackages]:
    """Creates package managers, each with its own home."""
    made: list[PackageManager] = []

    def make(**settings: Any) -> PackageManager:
        made.append(PackageManager(load_settings({"home": str(tmp_path / "home"), **settings})))
        return made[-1]

    yield make
    for packages in made:
        await packages.close()


@pytest.fixture
def packages(new_packages: NewPackages) -> PackageManager:
    return new_packages()
