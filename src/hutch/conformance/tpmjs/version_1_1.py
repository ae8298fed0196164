"""Checks of protocol version 1.1, which run only if the executor supports it."""

from __future__ import annotations

from hutch.conformance.outcome import Check, CheckFailed, NotSupported
from hutch.conformance.tpmjs.health_check import run_health_check
from hutch.conformance.tpmjs.response import ExecutorResponse, JsonObject, expect_duration, show, text
from hutch.conformance.tpmjs.target import UNKNOWN, ExecutorTarget

CODES = {
    "request": ("INVALID_REQUEST", "AUTHENTICATION_REQUIRED"),
    "load": (
        "PACKAGE_IMPORT_FAILED",
        "TOOL_NOT_FOUND",
        "TOOL_CONFIGURATION_REQUIRED",
        "INVALID_TOOL",
        "SCHEMA_UNAVAILABLE",
    ),
    "execute": ("TOOL_EXECUTION_FAILED", "EXECUTION_TIMEOUT"),
    "executor": ("EXECUTOR_UNAVAILABLE", "EXECUTOR_INTERNAL_ERROR"),
}
_VERSION = "1.1"
_HEADER = {"X-TPMJS-Protocol-Version": _VERSION}


async def _failure(target: ExecutorTarget) -> None:
    response = await target.execute(_unknown(target), headers=_HEADER)
    if not _is_1_1(response) and not await _declares_1_1(target):
        raise NotSupported
    _expect_failure(response, "load", "PACKAGE_IMPORT_FAILED")


async def _refusal(target: ExecutorTarget) -> None:
    response = await target.execute(b'{"packageName": ', headers=_HEADER)
    if not _is_1_1(response) and not await _declares_1_1(target):
        raise NotSupported
    response.expect(400)
    _expect_failure(response, "request", "INVALID_REQUEST")


async def _unknown_version(target: ExecutorTarget) -> None:
    for version in ("9.9", "one"):
        (await target.execute(_unknown(target), headers={"X-TPMJS-Protocol-Version": version})).failure()


async def _describe(target: ExecutorTarget) -> None:
    await target.require_success()
    await _description(target)


async def _description(target: ExecutorTarget) -> JsonObject:
    body = target.tool.request(params=None)
    response = await target.execute(body, "/load-and-describe", headers=_HEADER)
    if response.status in (404, 405):
        raise NotSupported
    response.expect(200)
    return expect_description(response)


async def _health_check(target: ExecutorTarget) -> str:
    """Runs the health check even if the valid request failed, because the parameters of that request may not
    suit the tool.
    """
    described = await _description(target)
    return await run_health_check(target, described["tool"], _HEADER)


def expect_description(response: ExecutorResponse) -> JsonObject:
    """Checks that the response has `tool.name`, `.description` and `.inputSchema`."""
    body = response.json_object()
    if body.get("success") is not True:
        raise CheckFailed(f'{response.request}: expected "success": true, got {show(body)}')
    tool = body.get("tool")
    if not isinstance(tool, dict):
        raise CheckFailed(f"{response.request}: tool: expected an object, got {show(tool)}")
    text(tool, "name", f"{response.request}: tool.")
    text(tool, "description", f"{response.request}: tool.")
    if not isinstance(tool.get("inputSchema"), dict):
        got = show(tool.get("inputSchema"))
        raise CheckFailed(f"{response.request}: tool.inputSchema: expected a JSON Schema, got {got}")
    return body


def _unknown(target: ExecutorTarget) -> JsonObject:
    return target.tool.request(packageName=UNKNOWN, version=None)


def _is_1_1(response: ExecutorResponse) -> bool:
    return not {"errorCode", "errorStage"}.isdisjoint(response.json_object())


async def _declares_1_1(target: ExecutorTarget) -> bool:
    """Returns True if GET /health reports version 1.1."""
    try:
        return (await target.health()).json_object().get("protocolVersion") == _VERSION
    except CheckFailed:
        return False


def _expect_failure(response: ExecutorResponse, stage: str, code: str) -> None:
    body = response.json_object()
    if body.get("success") is not False:
        raise CheckFailed(f'{response.request}: expected "success": false, got {show(body)}')
    text(body, "error", f"{response.request}: ")
    actual = (body.get("errorStage"), body.get("errorCode"))
    if actual != (stage, code):
        note = "" if actual[1] in CODES.get(str(actual[0]), ()) else ", which does not exist"
        got = f"{show(actual[0])} {show(actual[1])}{note}"
        raise CheckFailed(f"{response.request}: errorStage and errorCode: expected {stage} {code}, got {got}")
    if not isinstance(body.get("retryable"), bool):
        got = show(body.get("retryable"))
        raise CheckFailed(f"{response.request}: retryable: expected true or false, got {got}")
    expect_duration(response)


CHECKS: tuple[Check[ExecutorTarget], ...] = (
    Check("1.1: a failed execution", _failure),
    Check("1.1: a refused request", _refusal),
    Check("1.1: POST /load-and-describe", _describe),
    Check("1.1: the health check that the tool declares", _health_check),
    Check("An unknown protocol version is answered as 1.0", _unknown_version),
)
