"""One executor for all tests of a file, each of which finds it complying."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.compliance.asking import KEY
from tests.cli.compliance.executor import Executor, running


@pytest.fixture(scope="module")
def server() -> Iterator[Executor]:
    with running() as executor:
        yield executor


@pytest.fixture
def executor(server: Executor) -> Iterator[Executor]:
    server.reset()
    server.key = KEY
    yield server
    assert server.faults == []
