"""Connections that are gone as soon as they are made."""

from __future__ import annotations

import pytest

from hutch.egress import urls
from hutch.egress.connection import Connection
from hutch.egress.connections import Connections, Place
from hutch.egress.fetch import FetchError
from hutch.egress.policy import Policy
from hutch.egress.urls import Url


class Fleeting(Connections):
    """Every server hangs up before anything can be asked."""

    async def _connect(self, place: Place, url: Url) -> Connection:
        made = Connection(url.host, self._free, self._gone)
        made.connection_lost(None)
        return made


async def test_connection_that_is_gone_already_is_an_error_and_takes_no_place() -> None:
    connections, url = Fleeting(), urls.parse("https://api.test/")
    with pytest.raises(FetchError, match=r"api\.test:443 was closed at once"):
        await connections.connect(Place("ada", Policy("public"), url.origin), url)
    assert connections.open == 0
