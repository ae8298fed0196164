"""Fixtures: one fake executor for each test module. Before each test, the executor is reset so that it
complies with the whole protocol.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conformance.tpmjs.fake_executor import FakeExecutor, running
from tests.conformance.tpmjs.suite_helpers import KEY


@pytest.fixture(scope="module")
def server() -> Iterator[FakeExecutor]:
    with running() as executor:
        yield executor


@pytest.fixture
def executor(server: FakeExecutor) -> Iterator[FakeExecutor]:
    server.reset()
    server.key = KEY
    yield server
    assert server.errors == []
