"""Fixtures of the modules that do not define their own: the settings of two Hutches, and tools."""

from __future__ import annotations

import pytest
from tests.kernel.durable.suspension import Tools
from tests.support import databases

from hutch.settings import Settings


@pytest.fixture(params=["sqlite", "postgres"], scope="module")
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = str(tmp_path_factory.mktemp("home"))
    if request.param == "sqlite":
        return Settings(home=home)
    server: databases.PostgresServer = request.getfixturevalue("postgres")
    return Settings(home=home, database_url=server.new_database())


@pytest.fixture
def tools() -> Tools:
    return Tools()
