"""Fixtures for all tests. Tests that only run guest code share one event loop and one sandbox."""

from __future__ import annotations

import functools
import gc
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support import databases
from tests.support.processes import ServeProcess, running_server

import hutch
from hutch.session.json_value import well_formed
from hutch.settings import Settings
from hutch.store.store import Store
from hutch.vault.flow_keys import open_store

# These variables choose the programs to test with, so they stay in the environment.
BINARIES = ("HUTCH_DENO", "HUTCH_BWRAP")
ALIASES = ("EXECUTOR_API_KEY", "PROXY_URL")

Run = Callable[..., Awaitable[hutch.Result]]

pytest_plugins = ["tests.support.parallel"]

# Handle SIGINT again. A shell starts background jobs with SIGINT ignored, and child processes would inherit
# this setting.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Switch garbage collection off while pytest imports and collects the tests. Garbage collections would find
# nothing, and would take a fifth of that time.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the files of this folder and of deploy/ first, because some of these files take long. If a long
    file ran last, only one test process would still be busy.
    """
    folder = Path(__file__).parent
    items.sort(key=lambda item: item.path.parent not in (folder, folder / "deploy"))


def pytest_collection_finish() -> None:
    """Excludes everything collected so far from later garbage collections."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replaces lone surrogates in logged text, because text with lone surrogates cannot be sent to another
    process.
    """
    report = yield
    report.sections = [(name, well_formed(text)) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Removes the tester's own settings, and uses a temporary home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if (name.startswith(("HUTCH_", "OTEL_")) and name not in BINARIES) or name in ALIASES:
                patch.delenv(name)
        patch.setenv("HUTCH_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(httpx2._transports.default, "create_ssl_context", _certificates)
        yield


def _certificates(**options: Any) -> ssl.SSLContext:
    """Caches SSL contexts. Otherwise httpx2 would read the certificates again for each client."""
    variables = tuple(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    return _read_once(variables, tuple(options.items()))


@functools.cache
def _read_once(_: object, options: tuple[tuple[str, Any], ...]) -> ssl.SSLContext:
    return httpx2.create_ssl_context(**dict(options))


@pytest.fixture(scope="session")
async def sandbox(anyio_backend: object, environment: None) -> AsyncIterator[hutch.Hutch]:
    """A Hutch with default settings, which all tests share. Tests that change the pool create their own
    Hutch.
    """
    async with hutch.Hutch() as started:
        yield started


@pytest.fixture(params=["quickjs", "deno"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(sandbox: hutch.Hutch, engine: str) -> Run:
    """Runs guest code in the engine under test."""
    return partial(sandbox.run, engine=engine)


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.PostgresServer]:
    """A running PostgreSQL server."""
    with databases.running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    """Settings with their own home, and a database with empty tables. Tests that use this fixture run on
    SQLite and on PostgreSQL.
    """
    home = tmp_path / "home"
    if request.param == "sqlite":
        databases.create_sqlite_tables(home)
        yield Settings(home=str(home))
    else:
        server: databases.PostgresServer = request.getfixturevalue("postgres")
        with server.database_with_tables() as url:
            yield Settings(home=str(home), database_url=url)


@pytest.fixture(params=["sqlite", "postgres"])
def new_store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Like `store_settings`, but the database has no tables yet."""
    home = str(tmp_path / "home")
    if request.param == "sqlite":
        return Settings(home=home)
    server: databases.PostgresServer = request.getfixturevalue("postgres")
    return Settings(home=home, database_url=server.new_database())


@pytest.fixture
async def store(store_settings: Settings) -> AsyncIterator[Store]:
    async with await open_store(store_settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[ServeProcess]:
    """A server with default settings, except that it logs at debug level and has a long grace period for
    cancelled executions.
    """
    with running_server(
        HUTCH_LOG_LEVEL="debug", HUTCH_LOG_JSON="true", HUTCH_CANCEL_GRACE_MS="10000"
    ) as running:
        yield running
