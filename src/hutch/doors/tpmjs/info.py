"""`/info`: what this executor can, as its settings and its self-test say."""

from __future__ import annotations

import sys
from typing import Any

from hutch._version import __version__
from hutch.doors.health import PROTOCOL_VERSION
from hutch.doors.tpmjs.answers import VERSIONS
from hutch.doors.tpmjs.requests import MAX_BATCH
from hutch.sandbox.verdict import Verdict
from hutch.settings import Settings

# The version of Node that a Deno says to be. To ask it takes a process; a test does.
NODE_VERSIONS = {"2.9.8": "26.5.1"}


def info(settings: Settings, verdict: Verdict, deno_version: str) -> dict[str, Any]:
    runtime = {
        "platform": sys.platform,
        "nodeVersion": NODE_VERSIONS.get(deno_version),
        "denoVersion": deno_version,
        "region": settings.region,
    }
    return {
        "name": settings.executor_name,
        "version": __version__,
        "protocolVersion": PROTOCOL_VERSION,
        "supportedProtocolVersions": list(VERSIONS),
        "capabilities": {
            "isolation": verdict.isolation,
            "executionModes": ["sync", "stream"],
            "maxExecutionTimeMs": min(settings.tool_timeout_ms, int(settings.request_seconds * 1000)),
            "maxRequestBodyBytes": settings.max_body_bytes,
            "supportsStreaming": True,
            "supportsCallbacks": False,
            "supportsCaching": True,
            "supportsValidation": True,
            "supportsBatch": True,
            "maxBatchSize": MAX_BATCH,
            "maxConcurrentExecutions": settings.max_tools,
            **({"maxExecutionsPerMinute": settings.rate_limit} if settings.rate_limit else {}),
        },
        "runtime": {name: value for name, value in runtime.items() if value is not None},
        "metadata": settings.metadata,
    }
