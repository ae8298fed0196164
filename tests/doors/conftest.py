"""Servers that the tests of the doors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.processes import Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """As it is by default, but for a log that says all, and for patience with what is cancelled."""
    with serving(HUTCH_LOG_LEVEL="debug", HUTCH_LOG_JSON="true", HUTCH_CANCEL_GRACE_MS="10000") as running:
        yield running
