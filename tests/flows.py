"""Flows written by hand, and a real `hutch runtime serve` to run them on."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.doors.rep.flows import chain, document, edge, step
from tests.processes import HUTCH, PATIENCE, end, started

__all__ = ["SERVE", "SOON", "Ended", "Runtime", "chain", "edge", "flow", "node", "serving"]

SERVE = [*HUTCH, "runtime", "serve"]
# The promise is a second; the rest is for a machine that is busy with something else.
SOON = 5.0


def node(
    id: str, kind: str, timeout_ms: int = 0, retries: int = 0, backoff_ms: int = 0, **given: Any
) -> dict[str, Any]:
    """A step; what is given by name is its `with`. A name that is a word of Python ends with `_`."""
    named = {name.removesuffix("_"): value for name, value in given.items()}
    return step(id, kind, named, timeout_ms=timeout_ms, retries=retries, backoff_ms=backoff_ms)


def flow(
    nodes: Sequence[dict[str, Any]],
    edges: Sequence[dict[str, Any]] = (),
    *,
    name: str = "tested",
    timeout_ms: int = 0,
    inputs_schema: dict[str, Any] | None = None,
    version: str = "1.0.0",
) -> dict[str, Any]:
    """Flow IR."""
    ir = document(list(nodes), list(edges), name=name, timeout_ms=timeout_ms, inputs=inputs_schema)
    return {**ir, "version": version}


class Ended(NamedTuple):
    """A run that is over, as who polled saw it."""

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


class Runtime:
    """The orchestrator's end of a runtime, one request at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._id = 0

    def say(self, *lines: str | bytes) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write((line.encode() if isinstance(line, str) else line) + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), f"it ended: {line!r}"
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The whole answer."""
        self._id += 1
        self.say(
            json.dumps({"jsonrpc": "2.0", "id": self._id, "method": f"Runtime.{method}", "params": params})
        )
        answer = self.hear()
        assert answer["id"] == self._id
        return answer

    def result(self, method: str, **params: Any) -> dict[str, Any]:
        answer = self.call(method, **params)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def failure(self, method: str, **params: Any) -> dict[str, Any]:
        answer = self.call(method, **params)
        assert "result" not in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    def start(self, ir: dict[str, Any], inputs: dict[str, Any] | None = None, **options: Any) -> str:
        run_id: str = self.result("StartRun", ir=ir, inputs=inputs or {}, options=options)["run_id"]
        return run_id

    def poll_until(self, run_id: str, seen: Any, events: list[dict[str, Any]]) -> dict[str, Any]:
        """Polls until `seen` says so of the answer; events are added to those given."""
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.result("Poll", run_id=run_id)
            events += answer["events"]
            if seen(answer):
                return answer
            assert time.monotonic() < deadline, (answer, events)
            select.select([], [], [], 0.002)

    def ended(self, run_id: str, events: list[dict[str, Any]] | None = None) -> Ended:
        told = events if events is not None else []
        answer = self.poll_until(run_id, lambda one: one["status"] in ("completed", "failed"), told)
        return Ended(answer["status"], answer["summary"], told)

    def run(self, ir: dict[str, Any], inputs: dict[str, Any] | None = None, **options: Any) -> Ended:
        return self.ended(self.start(ir, inputs, **options))

    def close(self) -> bytes:
        """Closes its stdin and gives what it still said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        return self.process.stdout.read()


@contextlib.contextmanager
def serving(*, cwd: Any = None, **env: str) -> Iterator[Runtime]:
    """A runtime; ended at the end if the test did not do so."""
    with started(["runtime", "serve"], env=env, cwd=cwd) as process:
        try:
            yield Runtime(process)
        finally:
            end(process)
