"""Builds Flow IR, and drives a real `hutch runtime serve`."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.protocols.rep.flows import chain, document, edge, step
from tests.support.processes import HUTCH, TIMEOUT_SECONDS, start_hutch, stop_process

__all__ = [
    "EXIT_SECONDS",
    "SERVE",
    "PolledRun",
    "StdioRuntime",
    "chain",
    "edge",
    "flow",
    "node",
    "running_runtime",
]

SERVE = [*HUTCH, "runtime", "serve"]
# A runtime should exit within one second. The limit here is higher, because the machine may be busy.
EXIT_SECONDS = 5.0


def node(
    id: str, kind: str, timeout_ms: int = 0, retries: int = 0, backoff_ms: int = 0, **with_: Any
) -> dict[str, Any]:
    """Builds a step. Other keyword arguments are the parameters in its `with`. A trailing `_` of a name is
    removed, so `from_` is `from`.
    """
    params = {name.removesuffix("_"): value for name, value in with_.items()}
    return step(id, kind, params, timeout_ms=timeout_ms, retries=retries, backoff_ms=backoff_ms)


def flow(
    nodes: Sequence[dict[str, Any]],
    edges: Sequence[dict[str, Any]] = (),
    *,
    name: str = "tested",
    timeout_ms: int = 0,
    inputs_schema: dict[str, Any] | None = None,
    version: str = "1.0.0",
) -> dict[str, Any]:
    ir = document(list(nodes), list(edges), name=name, timeout_ms=timeout_ms, inputs=inputs_schema)
    return {**ir, "version": version}


class PolledRun(NamedTuple):
    """Status, summary and all events of a finished run."""

    status: str
    summary: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def outputs(self) -> Any:
        assert self.status == "completed", self.summary
        return self.summary["outputs"]

    @property
    def error(self) -> dict[str, Any]:
        assert self.status == "failed", self.summary
        error: dict[str, Any] = self.summary["error"]
        return error

    def steps(self) -> list[tuple[str, str]]:
        return [(each["step_id"], each["state"]) for each in self.events if each["type"] == "step"]

    def logs(self) -> list[str]:
        return [each["message"] for each in self.events if each["type"] == "log"]


class StdioRuntime:
    """Sends requests to a runtime, one at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._id = 0

    def send(self, *lines: str | bytes) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write((line.encode() if isinstance(line, str) else line) + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), f"the runtime ended: {line!r}"
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Returns the whole response."""
        self._id += 1
        self.send(
            json.dumps({"jsonrpc": "2.0", "id": self._id, "method": f"Runtime.{method}", "params": params})
        )
        response = self.receive()
        assert response["id"] == self._id
        return response

    def result(self, method: str, **params: Any) -> dict[str, Any]:
        response = self.call(method, **params)
        assert "error" not in response, response
        result: dict[str, Any] = response["result"]
        return result

    def failure(self, method: str, **params: Any) -> dict[str, Any]:
        response = self.call(method, **params)
        assert "result" not in response, response
        error: dict[str, Any] = response["error"]
        return error

    def start(self, ir: dict[str, Any], inputs: dict[str, Any] | None = None, **options: Any) -> str:
        run_id: str = self.result("StartRun", ir=ir, inputs=inputs or {}, options=options)["run_id"]
        return run_id

    def poll_until(self, run_id: str, condition: Any, events: list[dict[str, Any]]) -> dict[str, Any]:
        """Polls until `condition` holds for a response. Adds new events to `events`."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            response = self.result("Poll", run_id=run_id)
            events += response["events"]
            if condition(response):
                return response
            assert time.monotonic() < deadline, (response, events)
            select.select([], [], [], 0.002)

    def ended(self, run_id: str, events: list[dict[str, Any]] | None = None) -> PolledRun:
        events = events if events is not None else []
        response = self.poll_until(run_id, lambda one: one["status"] in ("completed", "failed"), events)
        return PolledRun(response["status"], response["summary"], events)

    def run(self, ir: dict[str, Any], inputs: dict[str, Any] | None = None, **options: Any) -> PolledRun:
        return self.ended(self.start(ir, inputs, **options))

    def close(self) -> bytes:
        """Closes stdin and returns the rest of stdout."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        return self.process.stdout.read()


@contextlib.contextmanager
def running_runtime(*, cwd: Any = None, **env: str) -> Iterator[StdioRuntime]:
    """Starts a runtime. At the end, stops the runtime if the test has not stopped it."""
    with start_hutch(["runtime", "serve"], env=env, cwd=cwd) as process:
        try:
            yield StdioRuntime(process)
        finally:
            stop_process(process)
