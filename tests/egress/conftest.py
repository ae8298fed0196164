"""Fixtures: a test server and an HTTP client that may reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.egress.recording_server import RecordingServer, run_http_client, run_recording_server

from hutch.egress.client.client import FetchClient


@pytest.fixture
async def server(anyio_backend: object) -> AsyncIterator[RecordingServer]:
    async with run_recording_server() as made:
        yield made


@pytest.fixture
async def client(anyio_backend: object) -> AsyncIterator[FetchClient]:
    async with run_http_client() as made:
        yield made
