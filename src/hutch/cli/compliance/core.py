"""What every executor must do (the specification's level 1)."""

from __future__ import annotations

from contextlib import suppress

from hutch.cli.compliance.answer import Answer, Object, milliseconds, show, text
from hutch.cli.compliance.outcome import Failed, NoAnswer, NotTested
from hutch.cli.compliance.subject import EXECUTE, Check, Subject

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


async def _health_status(on: Subject) -> None:
    (await on.health()).expect(200)


async def _health_says_ok(on: Subject) -> None:
    body = (await on.health()).object()
    if body.get("status") != "ok":
        raise Failed(f'GET /health: status: expected "ok", got {show(body.get("status"))}')


def _health_includes(field: str) -> Check:
    async def check(on: Subject) -> None:
        text((await on.health()).object(), field, "GET /health: ")

    return check


async def _health_in_time(on: Subject) -> str:
    answer = await on.get("/health", keyed=True)
    answer.expect(200)
    seconds = answer.seconds
    if seconds > HEALTH_SECONDS:
        raise Failed(f"GET /health took {seconds:.2f} s; it may take {HEALTH_SECONDS:g} s")
    return f"{seconds * 1000:.0f} ms"


async def _health_under_load(on: Subject) -> str:
    load = await on.load()
    seen = f"of {len(load.health)} requests during {len(load.executions)} executions"
    silent = [each for each in load.health if isinstance(each, NoAnswer)]
    if silent:
        raise Failed(f"{len(silent)} {seen} got no answer ({silent[0]})")
    for each in load.health:
        if isinstance(each, Answer):
            each.expect(200)
    p99 = load.p99()
    if p99 > HEALTH_SECONDS:
        raise Failed(f"p99 {seen}: {p99:.2f} s; it may take {HEALTH_SECONDS:g} s")
    return f"p99 {seen}: {p99 * 1000:.0f} ms"


async def _accepts(on: Subject) -> None:
    answer = await on.valid()
    if answer.status == 401:
        await on.ready()
    answer.execution()


async def _accepts_without_version(on: Subject) -> None:
    (await on.execute(on.tool.request(version=None))).execution()


async def _succeeds(on: Subject) -> None:
    await on.ready()
    body = (await on.valid()).execution()
    if not body["success"]:
        raise Failed(f"{on.tool.package}#{on.tool.name} failed: {show(body.get('error'))}")
    if "output" not in body:
        raise Failed(f"POST {EXECUTE}: output: expected a value or null, got nothing")


async def _tells_time(on: Subject) -> None:
    await on.ready()
    milliseconds(await on.valid())


async def _tells_error(on: Subject) -> None:
    code = (await on.unknown_package()).failure()["code"]
    if code not in ERROR_CODES:
        raise Failed(f"error.code: expected one of {', '.join(ERROR_CODES)}; got {code}")


async def _refuses_malformed(on: Subject) -> None:
    (await on.malformed()).refusal(400)


def _refuses(body: bytes) -> Check:
    async def check(on: Subject) -> None:
        (await on.execute(body)).refusal(400)

    return check


def refuses_change(**changes: object) -> Check:
    """The valid request, but for these fields, is refused."""

    async def check(on: Subject) -> None:
        body: Object = on.tool.request(**changes)
        (await on.execute(body)).refusal(400)

    return check


async def _cors(on: Subject) -> None:
    (await on.health()).allows()
    (await on.get("/health", keyed=True, headers={"Origin": ORIGIN})).allows(ORIGIN)
    with suppress(NoAnswer):
        (await on.valid()).allows()


async def _cors_on_errors(on: Subject) -> None:
    (await on.unknown_path()).allows()
    if await on.locked():
        (await on.keyless()).allows()
    with suppress(NotTested):
        (await on.malformed()).allows()


async def _preflight(on: Subject) -> None:
    for path in ("/health", EXECUTE):
        await preflight(on, path)


async def preflight(on: Subject, path: str) -> None:
    """Whether a browser would go on after it; it is asked without a key, as browsers do."""
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST" if path == EXECUTE else "GET",
        "Access-Control-Request-Headers": "authorization, content-type, x-tpmjs-protocol-version",
    }
    for headers in ({}, asked):
        answer = await on.options(path, headers)
        answer.expect(200, 204)
        answer.allows(headers.get("Origin"))
        _allows_requests(answer)


def _allows_requests(answer: Answer) -> None:
    for header, wanted in (
        ("Access-Control-Allow-Methods", ("GET", "POST", "OPTIONS")),
        ("Access-Control-Allow-Headers", ("Content-Type", "Authorization", "X-TPMJS-Protocol-Version")),
    ):
        given = {item.strip().lower() for item in answer.headers.get(header.lower(), "").split(",")}
        absent = [each for each in wanted if each.lower() not in given]
        if absent:
            raise Failed(f"{answer.request}: {header} lacks {', '.join(absent)}")


CHECKS: dict[str, Check] = {
    "GET /health returns 200": _health_status,
    "GET /health includes protocolVersion": _health_includes("protocolVersion"),
    "GET /health includes implementationVersion": _health_includes("implementationVersion"),
    "GET /health includes status ok": _health_says_ok,
    "GET /health answers within a second": _health_in_time,
    "POST /execute-tool accepts valid request": _accepts,
    "POST /execute-tool returns success response": _succeeds,
    "POST /execute-tool returns executionTimeMs": _tells_time,
    "POST /execute-tool accepts a request without version": _accepts_without_version,
    "POST /execute-tool returns error for invalid tool": _tells_error,
    "POST /execute-tool refuses malformed JSON": _refuses_malformed,
    "POST /execute-tool refuses an empty body": _refuses(b""),
    "POST /execute-tool refuses a body that is null": _refuses(b"null"),
    "POST /execute-tool refuses a missing packageName": refuses_change(packageName=None),
    "POST /execute-tool refuses a missing name": refuses_change(name=None),
    "POST /execute-tool refuses params that are an array": refuses_change(params=[]),
    "CORS headers present": _cors,
    "CORS headers on errors": _cors_on_errors,
    "OPTIONS preflight works": _preflight,
    "GET /health answers within a second under load": _health_under_load,
}
