"""What a client of version 1.1 is answered, where the executor speaks it."""

from __future__ import annotations

from hutch.cli.compliance.answer import Answer, Object, milliseconds, show, text
from hutch.cli.compliance.outcome import Failed, NotSupported
from hutch.cli.compliance.subject import NOBODY, Check, Subject

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


async def _failure(on: Subject) -> None:
    answer = await on.execute(_unknown(on), headers=_HEADER)
    if not _speaks(answer) and not await _says_so(on):
        raise NotSupported
    _is_failure(answer, "load", "PACKAGE_IMPORT_FAILED")


async def _refusal(on: Subject) -> None:
    answer = await on.execute(b'{"packageName": ', headers=_HEADER)
    if not _speaks(answer) and not await _says_so(on):
        raise NotSupported
    answer.expect(400)
    _is_failure(answer, "request", "INVALID_REQUEST")


async def _unknown_version(on: Subject) -> None:
    for version in ("9.9", "one"):
        (await on.execute(_unknown(on), headers={"X-TPMJS-Protocol-Version": version})).failure()


async def _describe(on: Subject) -> None:
    await on.works()
    body = on.tool.request(params=None)
    answer = await on.execute(body, "/load-and-describe", headers=_HEADER)
    if answer.status in (404, 405):
        raise NotSupported
    answer.expect(200)
    is_described(answer)


def is_described(answer: Answer) -> Object:
    """The body of an answer that has `tool.name`, `.description` and `.inputSchema`."""
    body = answer.object()
    if body.get("success") is not True:
        raise Failed(f'{answer.request}: expected "success": true, got {show(body)}')
    tool = body.get("tool")
    if not isinstance(tool, dict):
        raise Failed(f"{answer.request}: tool: expected an object, got {show(tool)}")
    text(tool, "name", f"{answer.request}: tool.")
    text(tool, "description", f"{answer.request}: tool.")
    if not isinstance(tool.get("inputSchema"), dict):
        got = show(tool.get("inputSchema"))
        raise Failed(f"{answer.request}: tool.inputSchema: expected a JSON Schema, got {got}")
    return body


def _unknown(on: Subject) -> Object:
    return on.tool.request(packageName=NOBODY, version=None)


def _speaks(answer: Answer) -> bool:
    return not {"errorCode", "errorStage"}.isdisjoint(answer.object())


async def _says_so(on: Subject) -> bool:
    """Whether the executor tells this version of itself."""
    try:
        return (await on.health()).object().get("protocolVersion") == _VERSION
    except Failed:
        return False


def _is_failure(answer: Answer, stage: str, code: str) -> None:
    body = answer.object()
    if body.get("success") is not False:
        raise Failed(f'{answer.request}: expected "success": false, got {show(body)}')
    text(body, "error", f"{answer.request}: ")
    given = (body.get("errorStage"), body.get("errorCode"))
    if given != (stage, code):
        known = "" if given[1] in CODES.get(str(given[0]), ()) else ", which there is not"
        got = f"{show(given[0])} {show(given[1])}{known}"
        raise Failed(f"{answer.request}: errorStage and errorCode: expected {stage} {code}, got {got}")
    if not isinstance(body.get("retryable"), bool):
        got = show(body.get("retryable"))
        raise Failed(f"{answer.request}: retryable: expected true or false, got {got}")
    milliseconds(answer)


CHECKS: dict[str, Check] = {
    "1.1: a failed execution": _failure,
    "1.1: a refused request": _refusal,
    "1.1: POST /load-and-describe": _describe,
    "An unknown protocol version is answered as 1.0": _unknown_version,
}
