"""`/info` and `/health`."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest
from tests.protocols.tpmjs.harness import SELF_TEST, TpmjsServer

import hutch
from hutch.protocols.tpmjs.descriptions import NODE_VERSIONS, info_response
from hutch.sandbox import deno_binary
from hutch.settings import Settings


async def test_info_reports_capabilities() -> None:
    server = TpmjsServer(
        executor_name="Ours", region="eu-west-1", metadata={"owner": "platform"}, max_tools=5, rate_limit=9
    )
    response = await server.client.get("http://127.0.0.1/info")
    assert (response.status_code, response.json()) == (
        200,
        {
            "name": "Ours",
            "version": hutch.__version__,
            "protocolVersion": "1.0",
            "supportedProtocolVersions": ["1.0", "1.1"],
            "capabilities": {
                "isolation": "container",
                "executionModes": ["sync", "stream"],
                "maxExecutionTimeMs": 120_000,
                "maxRequestBodyBytes": 10_485_760,
                "supportsStreaming": True,
                "supportsCallbacks": False,
                "supportsCaching": True,
                "supportsValidation": True,
                "supportsBatch": True,
                "maxBatchSize": 32,
                "maxConcurrentExecutions": 5,
                "maxExecutionsPerMinute": 9,
            },
            "runtime": {
                "platform": sys.platform,
                "nodeVersion": NODE_VERSIONS["2.9.8"],
                "denoVersion": "2.9.8",
                "region": "eu-west-1",
            },
            "metadata": {"owner": "platform"},
        },
    )


def test_max_execution_time_is_limited_by_the_request_timeout() -> None:
    data = info_response(Settings(tool_timeout_ms=120_000, request_seconds=90), SELF_TEST, "2.9.8")
    assert data["capabilities"]["maxExecutionTimeMs"] == 90_000


def test_unknown_values_are_omitted() -> None:
    data = info_response(Settings(), SELF_TEST, "99.0.0")
    assert data["runtime"] == {"platform": sys.platform, "denoVersion": "99.0.0"}


def test_node_version_is_the_one_that_deno_reports() -> None:
    deno = deno_binary.find_deno()
    if deno_binary.deno_version(deno) not in NODE_VERSIONS:
        pytest.skip("another Deno than the one that Hutch comes with")
    completed = subprocess.run(
        [deno, "eval", "--no-config", "console.log(process.versions.node)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert NODE_VERSIONS[deno_binary.deno_version(deno)] == completed.stdout.strip()


async def test_health_reports_the_protocol_version() -> None:
    response = await TpmjsServer().client.get("http://127.0.0.1/api/health")
    data = response.json()
    assert (response.status_code, data["status"], data["protocolVersion"]) == (200, "ok", "1.0")
    assert (data["implementationVersion"], data["runtime"]) == (hutch.__version__, "deno")
    assert datetime.fromisoformat(data["timestamp"]).utcoffset() is not None
