"""Connections that the server closes immediately after they are opened."""

from __future__ import annotations

import pytest

from hutch.egress import addresses
from hutch.egress.addresses import Url
from hutch.egress.client.connection import ClientConnection
from hutch.egress.client.models import FetchError
from hutch.egress.client.pool import ConnectionPool, PoolKey
from hutch.egress.policy import EgressPolicy


class ClosingPool(ConnectionPool):
    """Pool whose connections are closed by the server before a request can be sent."""

    async def _connect(self, key: PoolKey, url: Url) -> ClientConnection:
        connection = ClientConnection(url.host, self._release, self._remove)
        connection.connection_lost(None)
        return connection


async def test_connection_closed_immediately_is_an_error_and_not_counted() -> None:
    pool, url = ClosingPool(), addresses.parse_url("https://api.test/")
    with pytest.raises(FetchError, match=r"api\.test:443 was closed"):
        await pool.connect(PoolKey("ada", EgressPolicy("public"), url.origin), url)
    assert pool.open == 0
