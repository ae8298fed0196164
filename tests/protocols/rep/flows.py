"""Builds Flow IR documents for tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

Json = dict[str, Any]


def step(
    step_id: str,
    kind: str = "code.run",
    with_: Json | None = None,
    *,
    timeout_ms: int = 0,
    retries: int = 0,
    backoff_ms: int = 0,
) -> Json:
    return {
        "id": step_id,
        "type": kind,
        "with": {} if with_ is None else with_,
        "timeout_ms": timeout_ms,
        "retry": {"max": retries, "backoff_ms": backoff_ms},
    }


def edge(source: str, target: str, on: str = "success", case: str | None = None) -> Json:
    found = {"from": source, "to": target, "on": on}
    return found if case is None else {**found, "case": case}


def chain(*ids: str) -> list[Json]:
    return [edge(source, target) for source, target in pairwise(ids)]


def document(
    steps: list[Json],
    edges: list[Json] | None = None,
    *,
    name: str = "demo",
    timeout_ms: int = 0,
    inputs: Json | None = None,
    source_file: str = "demo.json",
) -> Json:
    return {
        "version": "1.0.0",
        "flow": {"name": name, "timeout_ms": timeout_ms},
        "constants": {"policyRef": "none", "policy": {}},
        "inputs_schema": {} if inputs is None else inputs,
        "graph": {"nodes": steps, "edges": [] if edges is None else edges},
        "metadata": {"generated_at": "2026-01-31T12:00:00Z", "source_file": source_file},
    }


def compiled() -> Json:
    """Output of TraceMind's compiler for a small workflow with a `when`."""
    return document(
        [
            step(
                "read", "opcua.read", {"endpoint": "$input.endpoint", "node_ids": '["a", "b"]', "count": "3"}
            ),
            step(
                "when_0",
                "switch",
                {
                    "key_from": "$.vars.read.status",
                    "cases": {"ok": "write", "_DEFAULT": "emit_1"},
                    "default": "_DEFAULT",
                },
            ),
            step("write", "opcua.write", {"endpoint": "$input.endpoint", "value": "$step.read.values.a"}),
            step("emit_1", "dsl.emit", {"result": "$step.read.values", "fixed": "3"}),
            step("finish_2", "finish"),
        ],
        [
            edge("when_0", "write", case="ok"),
            edge("read", "when_0"),
            edge("write", "emit_1"),
            edge("when_0", "emit_1", case="_DEFAULT"),
            edge("emit_1", "finish_2"),
        ],
        inputs={"endpoint": {"type": "string"}, "ids": {"type": "list<string>"}},
        source_file="plant/monitor.wdl",
    )


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Returns a function that sets the value at a dotted path in a document. The value `...` deletes it."""

    def apply(target: Any) -> None:
        *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        for part in parents:
            target = target[part]
        if value is ...:
            del target[last]
        else:
            target[last] = value

    return apply
