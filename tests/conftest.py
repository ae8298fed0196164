"""One event loop and one sandbox for all tests that only run guest code in it."""

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
from tests import databases

import hutch
from hutch.session.jsonvalue import well_formed
from hutch.settings import Settings
from hutch.store.store import Store
from hutch.vault.journals import open_store

# Which programs to test with, not how they are to behave.
BINARIES = ("HUTCH_DENO", "HUTCH_BWRAP")
ALIASES = ("EXECUTOR_API_KEY", "PROXY_URL")

Run = Callable[..., Awaitable[hutch.Result]]

# Whoever is started in the background by a shell ignores it, and so would all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: nobody who looks for garbage has to look at all of it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was logged may have lone surrogates, which cannot go from one process to another."""
    report = yield
    report.sections = [(name, well_formed(text)) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the tester's own settings counts, and nothing is written to their home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if (name.startswith("HUTCH_") and name not in BINARIES) or name in ALIASES:
                patch.delenv(name)
        patch.setenv("HUTCH_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(httpx2._transports.default, "create_ssl_context", _certificates)
        yield


def _certificates(**options: Any) -> ssl.SSLContext:
    """As httpx2 reads them for every client anew."""
    variables = tuple(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    return _read_once(variables, tuple(options.items()))


@functools.cache
def _read_once(_: object, options: tuple[tuple[str, Any], ...]) -> ssl.SSLContext:
    return httpx2.create_ssl_context(**dict(options))


@pytest.fixture(scope="session")
async def sandbox(anyio_backend: object, environment: None) -> AsyncIterator[hutch.Hutch]:
    """A Hutch with the default settings. Tests that change the pool make their own."""
    async with hutch.Hutch() as started:
        yield started


@pytest.fixture(params=["quickjs", "deno"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(sandbox: hutch.Hutch, engine: str) -> Run:
    """Runs guest code in the engine that the test is for."""
    return partial(sandbox.run, engine=engine)


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Server]:
    """A running PostgreSQL, for whoever asks."""
    with databases.serving() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings with a home and a database of this test's own; every test that asks for it runs on both."""
    home = str(tmp_path / "home")
    if request.param == "sqlite":
        return Settings(home=home)
    server: databases.Server = request.getfixturevalue("postgres")
    return Settings(home=home, database_url=server.new_database())


@pytest.fixture
async def store(store_settings: Settings) -> AsyncIterator[Store]:
    async with await open_store(store_settings) as opened:
        yield opened
