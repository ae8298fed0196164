"""Mandatory requirements: level 1 of the specification."""

from __future__ import annotations

from contextlib import suppress

from hutch.conformance.outcome import Check, CheckFailed, NotTested
from hutch.conformance.tpmjs.client import NoResponse
from hutch.conformance.tpmjs.response import ExecutorResponse, JsonObject, expect_duration, show, text
from hutch.conformance.tpmjs.target import EXECUTE, ExecutorTarget, RunCheck

ERROR_CODES = (
    "PACKAGE_NOT_FOUND",
    "TOOL_NOT_FOUND",
    "TOOL_INVALID",
    "TOOL_EXECUTION_ERROR",
    "EXECUTION_TIMEOUT",
    "INTERNAL_ERROR",
)
HEALTH_SECONDS = 1.0
ORIGIN = "https://example.com"


async def _health_status(target: ExecutorTarget) -> None:
    (await target.health()).expect(200)


async def _health_says_ok(target: ExecutorTarget) -> None:
    body = (await target.health()).json_object()
    if body.get("status") != "ok":
        raise CheckFailed(f'GET /health: status: expected "ok", got {show(body.get("status"))}')


def _health_includes(field: str) -> RunCheck:
    async def check(target: ExecutorTarget) -> None:
        text((await target.health()).json_object(), field, "GET /health: ")

    return check


async def _health_in_time(target: ExecutorTarget) -> str:
    response = await target.get("/health", with_key=True)
    response.expect(200)
    seconds = response.seconds
    if seconds > HEALTH_SECONDS:
        raise CheckFailed(f"GET /health took {seconds:.2f} s; it may take {HEALTH_SECONDS:g} s")
    return f"{seconds * 1000:.0f} ms"


async def _health_under_load(target: ExecutorTarget) -> str:
    load = await target.load()
    context = f"of {len(load.health)} requests during {len(load.executions)} executions"
    unanswered = [result for result in load.health if isinstance(result, NoResponse)]
    if unanswered:
        raise CheckFailed(f"{len(unanswered)} {context} got no answer ({unanswered[0]})")
    for result in load.health:
        if isinstance(result, ExecutorResponse):
            result.expect(200)
    p99 = load.p99()
    if p99 > HEALTH_SECONDS:
        raise CheckFailed(f"p99 {context}: {p99:.2f} s; it may take {HEALTH_SECONDS:g} s")
    return f"p99 {context}: {p99 * 1000:.0f} ms"


async def _accepts(target: ExecutorTarget) -> None:
    response = await target.valid()
    if response.status == 401:
        await target.require_access()
    response.execution()


async def _accepts_without_version(target: ExecutorTarget) -> None:
    (await target.execute(target.tool.request(version=None))).execution()


async def _succeeds(target: ExecutorTarget) -> None:
    await target.require_access()
    body = (await target.valid()).execution()
    if not body["success"]:
        raise CheckFailed(f"{target.tool.package}#{target.tool.name} failed: {show(body.get('error'))}")
    if "output" not in body:
        raise CheckFailed(f"POST {EXECUTE}: output: expected a value or null, got nothing")


async def _returns_duration(target: ExecutorTarget) -> None:
    await target.require_access()
    expect_duration(await target.valid())


async def _returns_error(target: ExecutorTarget) -> None:
    code = (await target.unknown_package()).failure()["code"]
    if code not in ERROR_CODES:
        raise CheckFailed(f"error.code: expected one of {', '.join(ERROR_CODES)}; got {code}")


async def _refuses_malformed(target: ExecutorTarget) -> None:
    (await target.malformed()).refusal(400)


def _refuses(body: bytes) -> RunCheck:
    async def check(target: ExecutorTarget) -> None:
        (await target.execute(body)).refusal(400)

    return check


def refuses_change(**changes: object) -> RunCheck:
    """Returns a check that passes if the executor refuses the valid request with these changes."""

    async def check(target: ExecutorTarget) -> None:
        body: JsonObject = target.tool.request(**changes)
        (await target.execute(body)).refusal(400)

    return check


async def _cors(target: ExecutorTarget) -> None:
    (await target.health()).expect_cors()
    (await target.get("/health", with_key=True, headers={"Origin": ORIGIN})).expect_cors(ORIGIN)
    with suppress(NoResponse):
        (await target.valid()).expect_cors()


async def _cors_on_errors(target: ExecutorTarget) -> None:
    (await target.unknown_path()).expect_cors()
    if await target.requires_key():
        (await target.without_key()).expect_cors()
    with suppress(NotTested):
        (await target.malformed()).expect_cors()


async def _preflight(target: ExecutorTarget) -> None:
    for path in ("/health", EXECUTE):
        await expect_preflight(target, path)


async def expect_preflight(target: ExecutorTarget, path: str) -> None:
    """Checks that a browser would accept the preflight response. A preflight request has no key."""
    browser_headers = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST" if path == EXECUTE else "GET",
        "Access-Control-Request-Headers": "authorization, content-type, x-tpmjs-protocol-version",
    }
    for headers in ({}, browser_headers):
        response = await target.options(path, headers)
        response.expect(200, 204)
        response.expect_cors(headers.get("Origin"))
        _expect_allowed(response)


def _expect_allowed(response: ExecutorResponse) -> None:
    for header, required in (
        ("Access-Control-Allow-Methods", ("GET", "POST", "OPTIONS")),
        ("Access-Control-Allow-Headers", ("Content-Type", "Authorization", "X-TPMJS-Protocol-Version")),
    ):
        allowed = {item.strip().lower() for item in response.headers.get(header.lower(), "").split(",")}
        missing = [name for name in required if name.lower() not in allowed]
        if missing:
            raise CheckFailed(f"{response.request}: {header} lacks {', '.join(missing)}")


CHECKS: tuple[Check[ExecutorTarget], ...] = (
    Check("GET /health returns 200", _health_status),
    Check("GET /health includes protocolVersion", _health_includes("protocolVersion")),
    Check("GET /health includes implementationVersion", _health_includes("implementationVersion")),
    Check("GET /health includes status ok", _health_says_ok),
    Check("GET /health answers within a second", _health_in_time),
    Check("POST /execute-tool accepts valid request", _accepts),
    Check("POST /execute-tool returns success response", _succeeds),
    Check("POST /execute-tool returns executionTimeMs", _returns_duration),
    Check("POST /execute-tool accepts a request without version", _accepts_without_version),
    Check("POST /execute-tool returns error for invalid tool", _returns_error),
    Check("POST /execute-tool refuses malformed JSON", _refuses_malformed),
    Check("POST /execute-tool refuses an empty body", _refuses(b"")),
    Check("POST /execute-tool refuses a body that is null", _refuses(b"null")),
    Check("POST /execute-tool refuses a missing packageName", refuses_change(packageName=None)),
    Check("POST /execute-tool refuses a missing name", refuses_change(name=None)),
    Check("POST /execute-tool refuses params that are an array", refuses_change(params=[])),
    Check("CORS headers present", _cors),
    Check("CORS headers on errors", _cors_on_errors),
    Check("OPTIONS preflight works", _preflight),
    Check("GET /health answers within a second under load", _health_under_load),
)
