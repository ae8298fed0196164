"""A TPMJS executor under test. Sends requests and caches responses that several checks use."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from hutch.conformance.outcome import CheckFailed, NotTested, Target
from hutch.conformance.progress import Progress
from hutch.conformance.tpmjs.client import ExecutorClient, NoResponse
from hutch.conformance.tpmjs.response import ExecutorResponse, JsonObject, is_natural

T = TypeVar("T")

EXECUTE = "/execute-tool"
# Name that no package, tool or key has.
UNKNOWN = f"hutch-check-{uuid.uuid4().hex}"

LOAD_CLIENTS = 8
# Number of requests that each client sends. If the executor is slow, a client stops earlier, after
# LOAD_SECONDS.
LOAD_ROUNDS = 5
LOAD_SECONDS = 5.0
# Pause between requests to /health, and the minimum number of these requests.
HEALTH_PAUSE_SECONDS = 0.01
MIN_HEALTH_REQUESTS = 20


class SampleTool(msgspec.Struct, frozen=True):
    """Tool of a package, and parameters to call it with."""

    package: str
    version: str | None
    name: str
    params: JsonObject

    def request(self, **changes: Any) -> JsonObject:
        """Returns the request body with changes. A change to None omits the field."""
        fields = {
            "packageName": self.package,
            "version": self.version,
            "name": self.name,
            "params": self.params,
        }
        return {key: value for key, value in {**fields, **changes}.items() if value is not None}


DEFAULT_TOOL = SampleTool(
    package="@tpmjs/tools-template-render",
    version="0.1.0",
    name="templateRenderTool",
    params={"template": "Hello {{name}}!", "data": {"name": "Hutch"}},
)
DEFAULT_OUTPUT = "Hello Hutch!"


class Timeouts(msgspec.Struct, frozen=True):
    """Timeouts for responses, in seconds."""

    response: float = 10.0
    """Timeout for requests without an execution."""
    execution: float = 185.0
    """Timeout for an execution. The specification allows 180 s for a whole request. The rest is
    for the network.
    """
    installation: float = 65.0
    """Time for installing the package. Added to the executor's time limit when the slow tool is tested."""


class ExecutorTarget(Target):
    def __init__(
        self,
        client: ExecutorClient,
        progress: Progress,
        tool: SampleTool = DEFAULT_TOOL,
        slow_tool: SampleTool | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.client = client
        self.progress = progress
        self.tool = tool
        self.slow_tool = slow_tool
        self.timeouts = timeouts or Timeouts()
        self._cache: dict[str, Any] = {}

    @property
    def secret(self) -> str | None:
        return self.client.key

    # --- requests without an execution ---

    async def get(
        self, path: str, *, with_key: bool = False, headers: Mapping[str, str] | None = None
    ) -> ExecutorResponse:
        return await self.client.get(path, self.timeouts.response, with_key=with_key, headers=headers)

    async def options(self, path: str, headers: Mapping[str, str]) -> ExecutorResponse:
        return await self.client.request("OPTIONS", path, self.timeouts.response, headers=headers)

    async def health(self) -> ExecutorResponse:
        return await self._cached("health", lambda: self._get_open("/health"))

    async def info(self) -> ExecutorResponse:
        return await self._cached("info", lambda: self._get_open("/info"))

    async def _get_open(self, path: str) -> ExecutorResponse:
        """Requests a route without the key. After a 401, repeats the request with the key.

        The specification requires the key for every route, but its test suite expects these routes to need
        none.
        """
        response = await self.get(path)
        if response.status == 401 and self.client.key is not None:
            return await self.get(path, with_key=True)
        return response

    async def capabilities(self) -> JsonObject:
        """Returns the capabilities. Raises NotTested if there are none."""
        try:
            info = await self.info()
            info.expect(200)
            capabilities = info.json_object().get("capabilities")
        except CheckFailed as error:
            raise NotTested(f"there are no capabilities: {error}") from None
        if not isinstance(capabilities, dict):
            raise NotTested("there are no capabilities in the answer of GET /info")
        return capabilities

    async def capability(self, name: str) -> Any:
        """Returns a capability, or None if it is missing."""
        try:
            return (await self.capabilities()).get(name)
        except NotTested:
            return None

    async def limit(self, name: str) -> int | None:
        """Returns a capability if it is a positive number, otherwise None."""
        value = await self.capability(name)
        return int(value) if is_natural(value) and value > 0 else None

    # --- executions ---

    async def valid(self) -> ExecutorResponse:
        """Returns the response to the valid request, which is the first execution."""
        return await self._cached("valid", lambda: self.post(self.tool.request()))

    async def require_access(self) -> None:
        """Raises NotTested if executions are refused because of the key."""
        if (await self._valid_or_not_tested()).status == 401:
            wrong = "it did not accept the one that was given"
            missing = "give it with --api-key"
            reason = missing if self.client.key is None else wrong
            raise NotTested(f"the executor requires a key: {reason}")

    async def _valid_or_not_tested(self) -> ExecutorResponse:
        """Returns the response to the valid request. If there was none, raises NotTested, so that no other
        execution is tried.
        """
        try:
            return await self.valid()
        except NoResponse as error:
            raise NotTested(f"the valid request got no answer ({error})") from None

    async def require_success(self) -> None:
        """Raises NotTested if the valid request does not succeed."""
        await self.require_access()
        try:
            succeeded = (await self.valid()).execution()["success"]
        except CheckFailed:
            succeeded = False
        if not succeeded:
            raise NotTested("the valid request did not succeed")

    async def execute(
        self,
        body: JsonObject | bytes,
        path: str = EXECUTE,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> ExecutorResponse:
        """Sends an execution request. Raises NotTested like `require_access`."""
        await self.require_access()
        return await self.post(body, path, headers, seconds=seconds)

    async def unknown_package(self) -> ExecutorResponse:
        body = self.tool.request(packageName=UNKNOWN, version=None)
        return await self._cached("unknown package", lambda: self.execute(body))

    async def malformed(self) -> ExecutorResponse:
        return await self._cached("malformed", lambda: self.execute(b'{"packageName": '))

    async def unknown_path(self) -> ExecutorResponse:
        return await self._cached("unknown path", lambda: self.get(f"/{UNKNOWN}", with_key=True))

    async def without_key(self) -> ExecutorResponse:
        """Sends the valid request without an API key, and returns the response."""
        response = await self._valid_or_not_tested()
        if self.client.key is None:
            return response
        body = self.tool.request()
        return await self._cached("without key", lambda: self.post(body, with_key=False))

    async def requires_key(self) -> bool:
        """Returns True if an execution without a key is refused."""
        return (await self.without_key()).status == 401

    async def load(self) -> LoadResult:
        await self.require_access()
        body = msgspec.json.encode(self.tool.request())

        async def execute() -> ExecutorResponse:
            return await self.client.post(EXECUTE, body, self.timeouts.execution, retry_later=False)

        return await self._cached("load", lambda: run_load(execute, lambda: self._get_open("/health")))

    async def post(
        self,
        body: JsonObject | bytes,
        path: str = EXECUTE,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        with_key: bool = True,
    ) -> ExecutorResponse:
        """Sends any body, without checking `require_access` first."""
        encoded = msgspec.json.encode(body) if isinstance(body, dict) else body
        seconds = seconds or self.timeouts.execution
        return await self.client.post(path, encoded, seconds, with_key=with_key, headers=headers)

    async def _cached(self, name: str, send: Callable[[], Awaitable[T]]) -> T:
        """Sends a request once, and caches its response or its NoResponse error."""
        if name not in self._cache:
            try:
                self._cache[name] = await send()
            except NoResponse as error:
                self._cache[name] = error
        cached: T | NoResponse = self._cache[name]
        if isinstance(cached, NoResponse):
            raise cached
        return cached


RunCheck = Callable[[ExecutorTarget], Awaitable[str | None]]


# --- load ---


class LoadResult(msgspec.Struct, frozen=True):
    """Responses to concurrent executions, and to the requests to /health during them."""

    executions: list[ExecutorResponse | NoResponse]
    health: list[ExecutorResponse | NoResponse]

    def p99(self) -> float:
        """99th percentile of the response time of /health in seconds. Counts only answered requests."""
        durations = sorted(
            response.seconds for response in self.health if isinstance(response, ExecutorResponse)
        )
        return durations[math.ceil(0.99 * len(durations)) - 1]


Send = Callable[[], Awaitable[ExecutorResponse]]


async def run_load(execute: Send, health: Send) -> LoadResult:
    """Starts concurrent executions, and requests /health until all executions are answered."""
    result = LoadResult([], [])
    deadline = time.monotonic() + LOAD_SECONDS

    async def client() -> None:
        for _ in range(LOAD_ROUNDS):
            result.executions.append(await _response_or_error(execute))
            if time.monotonic() > deadline:
                return

    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(client()) for _ in range(LOAD_CLIENTS)]
        # Let the clients start.
        await asyncio.sleep(0)
        while len(result.health) < MIN_HEALTH_REQUESTS or not all(task.done() for task in clients):
            result.health.append(await _response_or_error(health))
            await asyncio.sleep(HEALTH_PAUSE_SECONDS)
    return result


async def _response_or_error(send: Send) -> ExecutorResponse | NoResponse:
    try:
        return await send()
    except NoResponse as error:
        return error
