"""`/info` and `/health`: true, and as the settings say."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest
from tests.doors.tpmjs.scripted import VERDICT, Door

import hutch
from hutch.doors.tpmjs.info import NODE_VERSIONS, info
from hutch.sandbox import runtime
from hutch.settings import Settings


async def test_info_says_what_it_can() -> None:
    door = Door(
        executor_name="Ours", region="eu-west-1", metadata={"owner": "platform"}, max_tools=5, rate_limit=9
    )
    response = await door.client.get("http://127.0.0.1/info")
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


def test_time_of_an_execution_is_at_most_that_of_its_request() -> None:
    said = info(Settings(tool_timeout_ms=120_000, request_seconds=90), VERDICT, "2.9.8")
    assert said["capabilities"]["maxExecutionTimeMs"] == 90_000


def test_what_is_not_known_is_not_said() -> None:
    said = info(Settings(), VERDICT, "99.0.0")
    assert said["runtime"] == {"platform": sys.platform, "denoVersion": "99.0.0"}


def test_node_version_is_the_one_that_deno_says_to_be() -> None:
    deno = runtime.locate()
    if runtime.version(deno) not in NODE_VERSIONS:
        pytest.skip("another Deno than the one that Hutch comes with")
    told = subprocess.run(
        [deno, "eval", "--no-config", "console.log(process.versions.node)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert NODE_VERSIONS[runtime.version(deno)] == told.stdout.strip()


async def test_health_says_which_protocol_it_speaks() -> None:
    response = await Door().client.get("http://127.0.0.1/api/health")
    said = response.json()
    assert (response.status_code, said["status"], said["protocolVersion"]) == (200, "ok", "1.0")
    assert (said["implementationVersion"], said["runtime"]) == (hutch.__version__, "deno")
    assert datetime.fromisoformat(said["timestamp"]).utcoffset() is not None
