"""The way of a tool: that an operator can read where it was not let."""

from __future__ import annotations

import logging
import socket

import pytest
from tests.egress.servers import connected

from hutch.egress.policy import Policy
from hutch.ways import Ways


async def test_what_a_tool_was_refused_is_in_the_log_with_its_run(caplog: pytest.LogCaptureFixture) -> None:
    ways = Ways()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    way = await ways.open(listener, Policy("allowlist"))
    way.run_id = "0123"
    with caplog.at_level(logging.INFO, "hutch.egress"):
        async with connected(port) as (reader, writer):
            writer.write(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 403")
    way.close()
    await ways.close()
    assert "run 0123: example.com:443 is not on the list" in caplog.text
