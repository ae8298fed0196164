"""Uplinks of jails: refused connections are logged."""

from __future__ import annotations

import logging
import socket

import pytest
from tests.egress.servers import open_connection

from hutch.app.jail_uplinks import JailUplinks
from hutch.egress.policy import EgressPolicy


async def test_refused_connection_is_logged_with_its_run(caplog: pytest.LogCaptureFixture) -> None:
    uplinks = JailUplinks()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    uplink = await uplinks.open(listener, None, EgressPolicy("allowlist"))
    uplink.begin_run("0123")
    with caplog.at_level(logging.INFO, "hutch.egress"):
        async with open_connection(port) as (reader, writer):
            writer.write(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 403")
    uplink.close()
    await uplinks.close()
    assert "run 0123: example.com:443 is not in the list" in caplog.text
