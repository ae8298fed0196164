"""Runs the health check that the author of a tool declares: `healthCheck` of protocol 1.1."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from hutch.conformance.outcome import CheckFailed, NotTested
from hutch.conformance.tpmjs.response import JsonObject, show
from hutch.conformance.tpmjs.target import ExecutorTarget
from hutch.protocols.tpmjs.health_check import CleanupStep, HealthCheck

_TIMESTAMP = "{{timestamp}}"
_MINIMAL: dict[str, Any] = {
    "string": "test",
    "number": 1,
    "integer": 1,
    "boolean": False,
    "array": [],
    "object": {},
}


async def run_health_check(target: ExecutorTarget, tool: JsonObject, headers: Mapping[str, str]) -> str:
    """Calls a described tool with the parameters that its author declares, and then runs the declared cleanup
    steps. Returns a summary.

    Raises NotTested if there is no declaration, or if the call says nothing about the tool. Raises
    CheckFailed if the tool is broken. By the protocol's policy, a tool that was called and failed is healthy.
    """
    if (declared := tool.get("healthCheck")) is None:
        raise NotTested("the executor reports no healthCheck of the tool")
    try:
        check = msgspec.convert(declared, HealthCheck)
    except msgspec.ValidationError as error:
        raise CheckFailed(f"tool.healthCheck: {error}") from None
    if check.skip_execution:
        return "imported; not called, because it declares skipExecution"
    now = str(time.time_ns() // 1_000_000)
    params = minimal_params(tool) if check.test_params is None else _fill(check.test_params, now)
    # Health checks send no credentials.
    response = await target.execute(target.tool.request(params=params, env={}), headers=headers)
    body = response.json_object()
    summary = _judge_execution(body)
    failed = [
        step.tool
        for step in check.cleanup
        if not await _clean_up(target, step, body.get("output"), now, headers)
    ]
    return f"{summary}; cleanup failed: {', '.join(failed)}" if failed else summary


def _judge_execution(body: JsonObject) -> str:
    if body.get("success") is True:
        return "called with success"
    stage, code = body.get("errorStage"), body.get("errorCode")
    reason = f"{stage} {code}: {show(body.get('error'))}"
    if code == "TOOL_EXECUTION_FAILED":
        return "called; the tool itself failed"
    if stage == "load" and body.get("retryable") is False and code != "TOOL_CONFIGURATION_REQUIRED":
        raise CheckFailed(f"the tool is broken: {reason}")
    raise NotTested(f"the health of the tool is unknown: {reason}")


async def _clean_up(
    target: ExecutorTarget, step: CleanupStep, output: object, now: str, headers: Mapping[str, str]
) -> bool:
    params = _fill(step.params, now)
    for name, path in step.mapping.items():
        value = _find(output, path)
        if value is not None:
            params[name] = value
    request = target.tool.request(name=step.tool, params=params, env={})
    try:
        return (await target.execute(request, headers=headers)).json_object().get("success") is True
    except CheckFailed:
        return False


def minimal_params(tool: JsonObject) -> JsonObject:
    """Returns a value for each required parameter: its default, its first enum value, or one of its type."""
    schema = tool.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {name: _minimal_value(properties.get(name)) for name in required if isinstance(name, str)}


def _minimal_value(schema: object) -> Any:
    if not isinstance(schema, dict):
        return _MINIMAL["string"]
    if "default" in schema:
        return schema["default"]
    if isinstance(choices := schema.get("enum"), list) and choices:
        return choices[0]
    kind = schema.get("type")
    return _MINIMAL.get(kind if isinstance(kind, str) else "string", _MINIMAL["string"])


def _fill(value: Any, now: str) -> Any:
    """Replaces `{{timestamp}}` in all strings."""
    if isinstance(value, str):
        return value.replace(_TIMESTAMP, now)
    if isinstance(value, dict):
        return {key: _fill(child, now) for key, child in value.items()}
    return [_fill(child, now) for child in value] if isinstance(value, list) else value


def _find(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
