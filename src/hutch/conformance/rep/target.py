"""A REP runtime under test, with its process, its connection and the flows that it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple

from hutch.child_process.process import ChildProcess
from hutch.conformance.outcome import CheckFailed, NotTested, Target
from hutch.protocols.rep.jsonrpc import RpcError
from hutch.protocols.rep.orchestrator.client import (
    PollResult,
    ProtocolMismatch,
    RpcResponse,
    parse_poll,
    parse_response,
)
from hutch.protocols.rep.orchestrator.options import RunOptions
from hutch.protocols.rep.orchestrator.process import RuntimeStartError, launch
from hutch.protocols.rep.orchestrator.runtime_choice import RuntimeChoice
from hutch.protocols.rep.orchestrator.transport import RuntimeTransport

RESPONSE_SECONDS = 10.0


class SampleFlows(NamedTuple):
    """Flows for the runtime: one that completes, one that fails and one that takes long. Where a flow is
    None, a default flow is used.
    """

    completing: dict[str, Any] | None = None
    failing: dict[str, Any] | None = None
    lasting: dict[str, Any] | None = None
    inputs: Mapping[str, Any] = {}


class FinishedRun(NamedTuple):
    """Result of the last poll of a run, and all events of the run."""

    run_id: str
    last: PollResult
    events: list[Any]


class RuntimeConnection:
    """Sends valid and invalid requests to one runtime process, one after the other, and decodes the
    responses.
    """

    def __init__(self, process: ChildProcess, seconds: float) -> None:
        self.seconds = seconds
        """Timeout for one response."""
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._end_reason = ""
        self._last_id = 0
        self._is_over = False
        self._transport = RuntimeTransport(process)
        self._transport.on_line = self._lines.put_nowait
        self._transport.on_end = self._on_end

    @property
    def is_over(self) -> bool:
        return self._is_over

    def _on_end(self, reason: str) -> None:
        self._is_over = True
        self._end_reason = reason
        self._lines.put_nowait(None)

    def send(self, line: bytes) -> None:
        self._transport.send(line + b"\n")

    async def receive(self, label: str) -> bytes:
        """Returns the next line. Raises CheckFailed."""
        try:
            async with asyncio.timeout(self.seconds):
                line = await self._lines.get()
        except TimeoutError:
            raise CheckFailed(f"{label}: no answer within {self.seconds:g} s") from None
        if line is None:
            self._lines.put_nowait(None)
            raise CheckFailed(f"{label}: {self._end_reason}")
        return line

    async def response(self, label: str, id: object) -> RpcResponse:
        """Decodes the next line as the response to request `id`. Raises CheckFailed."""
        try:
            response = parse_response(await self.receive(label))
        except ProtocolMismatch as mismatch:
            raise CheckFailed(f"{label}: {mismatch}") from None
        if response.id != id:
            raise CheckFailed(f"{label}: expected id {json.dumps(id)}, got {json.dumps(response.id)}")
        return response

    async def call(self, method: str, *, id: int | None = None, **params: Any) -> Any:
        """Calls a method and returns its result. Raises RpcError and CheckFailed."""
        self._last_id = self._last_id + 1 if id is None else id
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": f"Runtime.{method}", "params": params}
        self.send(json.dumps(request).encode())
        response = await self.response(method, self._last_id)
        if response.error is not None:
            raise response.error
        return response.result

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a method whose result must be an object. Raises CheckFailed."""
        try:
            result = await self.call(method, **params)
        except RpcError as error:
            raise CheckFailed(f"{method}: error {error.code}: {error.message}") from None
        if not isinstance(result, dict):
            raise CheckFailed(f"{method}: expected an object as result, got {json.dumps(result)[:80]}")
        return result

    async def error(self, method: str, **params: Any) -> RpcError:
        """Calls a method that must return an error. Raises CheckFailed."""
        try:
            result = await self.call(method, **params)
        except RpcError as error:
            return error
        raise CheckFailed(f"{method}: expected an error, got the result {json.dumps(result)[:80]}")

    async def expect_alive(self) -> None:
        """Checks that the runtime still responds. Raises CheckFailed."""
        await self.result("Capabilities")

    async def exits_after_input(self, seconds: float) -> bool:
        """Closes the runtime's stdin. Returns True if the runtime exits within this time."""
        self._transport.end_input()
        return await self._transport.wait_exit(seconds)

    async def close(self) -> None:
        self._is_over = True
        await self._transport.close(at_once=True)


class RuntimeTarget(Target):
    """A runtime under test. Checks share one process until a check fails."""

    def __init__(
        self, choice: RuntimeChoice, samples: SampleFlows | None = None, *, seconds: float = RESPONSE_SECONDS
    ) -> None:
        self.choice = choice
        self.samples = samples or SampleFlows()
        self.seconds = seconds
        self.capabilities: dict[str, Any] = {}
        """Result of `Runtime.Capabilities`. Empty before the first check."""
        self._connection: RuntimeConnection | None = None
        self._runs = 0

    async def connect_new(self) -> RuntimeConnection:
        """Starts a process that only one check uses. Raises CheckFailed."""
        try:
            process = launch(self.choice, RunOptions(timeout=None))
        except RuntimeStartError as error:
            raise CheckFailed(str(error)) from None
        return RuntimeConnection(process, self.seconds)

    async def connect(self) -> RuntimeConnection:
        """Returns the connection that the checks share. Raises CheckFailed."""
        if self._connection is not None and self._connection.is_over:
            await self.disconnect()
        if self._connection is None:
            self._connection = await self.connect_new()
        return self._connection

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def recover(self) -> None:
        """Discards the shared connection, because its requests and responses may no longer match."""
        await self.disconnect()

    # --- flows ---

    @property
    def kinds(self) -> list[str]:
        kinds = self.capabilities.get("step_kinds")
        return kinds if isinstance(kinds, list) else []

    def completing_flow(self) -> dict[str, Any]:
        """Returns a flow that completes. By default it uses a control kind, which every runtime has (decision
        7).
        """
        if self.samples.completing is not None:
            return self.samples.completing
        return flow_document([flow_node("only", "dsl.emit" if "dsl.emit" in self.kinds else "finish")])

    def failing_flow(self) -> dict[str, Any]:
        """Returns a flow that fails. Raises NotTested if none can be made."""
        if self.samples.failing is not None:
            return self.samples.failing
        if "code.run" in self.kinds:
            return flow_document([flow_node("failing", "code.run", code='throw new Error("as asked")')])
        if "http.get" in self.kinds:
            return flow_document([flow_node("failing", "http.get", url="http://127.0.0.1:9/")])
        raise NotTested("give a flow that fails on this runtime with --failing FILE")

    def lasting_flow(self) -> dict[str, Any]:
        """Returns a flow that takes long. Raises NotTested if none can be made."""
        if self.samples.lasting is not None:
            return self.samples.lasting
        if "wait" in self.kinds:
            return flow_document([flow_node("lasting", "wait", seconds=600)])
        raise NotTested("give a flow that takes long on this runtime with --lasting FILE")

    # --- runs ---

    def new_id(self) -> str:
        self._runs += 1
        return f"check-{self._runs}"

    async def start(self, connection: RuntimeConnection, ir: dict[str, Any], run_id: str | None) -> str:
        """Starts a run and returns its id. Raises CheckFailed."""
        options = {"run_id": run_id, "trace_id": "check", "allow_shell": False}
        result = await connection.result("StartRun", ir=ir, inputs=dict(self.samples.inputs), options=options)
        actual = result.get("run_id")
        if not isinstance(actual, str) or not actual:
            raise CheckFailed("StartRun: run_id: expected a string")
        return actual

    async def run_completing(self, connection: RuntimeConnection) -> FinishedRun:
        """Runs the completing flow to its end. Raises CheckFailed and NotTested."""
        run_id = await self.start(connection, self.completing_flow(), self.new_id())
        run = await self.wait_finished(connection, run_id)
        if run.last.status != "completed" and self.samples.completing is None:
            raise NotTested("give a flow that completes on this runtime with --flow FILE")
        return run

    async def wait_finished(self, connection: RuntimeConnection, run_id: str) -> FinishedRun:
        """Polls until the run has ended. Raises CheckFailed."""
        events: list[Any] = []
        deadline = monotonic() + self.seconds
        while True:
            result = await connection.result("Poll", run_id=run_id)
            try:
                last = parse_poll(result)
            except ProtocolMismatch as mismatch:
                raise CheckFailed(str(mismatch)) from None
            events += result.get("events") or []
            if last.is_over:
                return FinishedRun(run_id, last, events)
            if monotonic() > deadline:
                raise CheckFailed(f"Poll: status: still {last.status!r} after {self.seconds:g} s")
            await asyncio.sleep(0.01)


def flow_node(id: str, kind: str, **parameters: Any) -> dict[str, Any]:
    return {
        "id": id,
        "type": kind,
        "with": parameters,
        "timeout_ms": 0,
        "retry": {"max": 0, "backoff_ms": 0},
    }


def flow_document(nodes: list[dict[str, Any]], edges: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Builds a Flow IR document."""
    return {
        "version": "1.0.0",
        "flow": {"name": "check", "timeout_ms": 0},
        "constants": {"policyRef": "check", "policy": {}},
        "inputs_schema": {},
        "graph": {"nodes": nodes, "edges": edges or []},
        "metadata": {"generated_at": "2026-01-01T00:00:00Z", "source_file": "check.json"},
    }
