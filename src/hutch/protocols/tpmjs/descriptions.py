"""Cached tool descriptions, and the `/info` response."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hutch._version import __version__
from hutch.http.health import PROTOCOL_VERSION
from hutch.protocols.tpmjs.models import PackageToolCall, ToolFailure
from hutch.protocols.tpmjs.requests import MAX_BATCH
from hutch.protocols.tpmjs.responses import VERSIONS
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.session.json_value import encode_value
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.protocols.tpmjs.execute import ToolExecutor

_MAX_ENTRIES = 256
_MAX_ENTRY_BYTES = 64 * 1024

# Node version that each Deno version reports. It is listed here because asking Deno would need a process. A
# test checks the table.
NODE_VERSIONS = {"2.9.8": "26.5.1"}

DescriptionKey = tuple[str, str, str]


class Descriptions:
    """Describes tools and caches successful results.

    Calls with an `env` are not cached, because a tool's description may depend on it.
    """

    def __init__(
        self, tools: ToolExecutor, latest_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tools = tools
        self._latest_seconds = latest_seconds
        self._clock = clock
        self._cache: OrderedDict[DescriptionKey, tuple[bytes, str, float | None]] = OrderedDict()

    def cached(self, call: PackageToolCall) -> tuple[bytes, str] | None:
        """Returns the cached description as JSON, and the exact version. Returns None if it is not cached."""
        if call.env:
            return None
        key = (call.spec.name, call.spec.version, call.name)
        tool, version, expires = self._cache.get(key, (b"", "", None))
        if not tool:
            return None
        if expires is not None and self._clock() >= expires:
            del self._cache[key]
            return None
        self._cache.move_to_end(key)
        return tool, version

    async def describe(self, call: PackageToolCall) -> tuple[bytes | None, ToolFailure | None, str | None]:
        """Describes a tool and caches the description. Returns the description as JSON, the failure and the
        version.
        """
        description, failure, version = await self._tools.describe(call)
        if description is None:
            return None, failure, version
        tool = encode_value(description)
        if failure is None and version is not None and not call.env and len(tool) <= _MAX_ENTRY_BYTES:
            self._store(call, tool, version)
        return tool, failure, version

    def _store(self, call: PackageToolCall, tool: bytes, version: str) -> None:
        """Caches a description permanently for the exact version, and for a limited time for the requested
        tag or range.
        """
        spec = call.spec
        if spec.version != version:
            expires = self._clock() + self._latest_seconds
            self._cache[spec.name, spec.version, call.name] = tool, version, expires
        self._cache[spec.name, version, call.name] = tool, version, None
        while len(self._cache) > _MAX_ENTRIES:
            self._cache.popitem(last=False)


def info_response(
    settings: Settings, self_test: SelfTestResult, deno_version: str, *, has_queue: bool = False
) -> dict[str, Any]:
    """Returns the body of `/info`. `has_queue` is true if the server executes asynchronous calls."""
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
            "isolation": self_test.isolation,
            "executionModes": ["sync", "stream", *(["async"] if has_queue else [])],
            "maxExecutionTimeMs": min(settings.tool_timeout_ms, int(settings.request_seconds * 1000)),
            "maxRequestBodyBytes": settings.max_body_bytes,
            "supportsStreaming": True,
            "supportsCallbacks": has_queue,
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
