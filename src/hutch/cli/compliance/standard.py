"""What executors should do (the specification's level 2)."""

from __future__ import annotations

from hutch.cli.compliance.answer import Answer, is_whole, show, text
from hutch.cli.compliance.body_limit import refuses_more
from hutch.cli.compliance.core import preflight
from hutch.cli.compliance.outcome import Failed, Missing, NotTested
from hutch.cli.compliance.subject import NOBODY, Check, Subject

ISOLATIONS = ("none", "process", "container", "vm")
# The least that the specification allows, and what it recommends.
LEAST_EXECUTION_MS = 60_000
EXECUTION_MS = 120_000
# A limit that strikes this much too early is not the one that /info tells.
EARLY = 0.9

NO_KEY = "needs an executor with a key, and the key with --api-key"


# --- /info ---


async def _info(on: Subject) -> None:
    answer = await on.info()
    if answer.status == 401 and on.client.key is None:
        raise NotTested("the executor wants a key: give it with --api-key")
    answer.expect(200)
    body = answer.object()
    text(body, "name", "GET /info: ")
    text(body, "version", "GET /info: ")
    found = body.get("capabilities")
    if not isinstance(found, dict):
        raise Failed(f"GET /info: capabilities: expected an object, got {show(found)}")
    for name in ("supportsStreaming", "supportsCallbacks", "supportsCaching"):
        if not isinstance(found.get(name, False), bool):
            raise Failed(f"GET /info: capabilities.{name}: expected true or false, got {show(found[name])}")


async def _info_version(on: Subject) -> None:
    await on.capabilities()
    body = (await on.info()).object()
    if "protocolVersion" not in body:
        raise Missing("there is no such field")
    text(body, "protocolVersion", "GET /info: ")


async def _capability(on: Subject, name: str) -> object:
    found = await on.capabilities()
    if name not in found:
        raise Missing(f"there is no such field; there are {', '.join(found) or 'none'}")
    return found[name]


async def _isolation(on: Subject) -> None:
    value = await _capability(on, "isolation")
    if value not in ISOLATIONS:
        raise Failed(f"expected one of {', '.join(ISOLATIONS)}; got {show(value)}")


async def _modes(on: Subject) -> None:
    value = await _capability(on, "executionModes")
    if not isinstance(value, list) or "sync" not in value:
        raise Failed(f'expected a list with "sync", got {show(value)}')


async def _max_time(on: Subject) -> None:
    value = await _capability(on, "maxExecutionTimeMs")
    if not is_whole(value) or value < LEAST_EXECUTION_MS:  # type: ignore[operator]
        raise Failed(f"expected a number from {LEAST_EXECUTION_MS}, got {show(value)}")


async def _max_body(on: Subject) -> None:
    value = await _capability(on, "maxRequestBodyBytes")
    if not is_whole(value) or not value:
        raise Failed(f"expected a number above 0, got {show(value)}")


# --- keys ---


async def _authentication(on: Subject) -> None:
    answer = await on.keyless()
    if answer.status != 401 and on.client.key is None:
        raise NotTested(NO_KEY)
    _unauthorized(answer)
    if on.client.key is None:
        raise NotTested("it is refused without a key; give --api-key to see that the key is accepted")
    (await on.valid()).expect(200)


async def _wrong_key(on: Subject) -> None:
    if not await on.locked():
        raise NotTested(NO_KEY)
    _unauthorized(await on.post(on.tool.request(), headers={"Authorization": f"Bearer {NOBODY}"}))


def _unauthorized(answer: Answer) -> None:
    code = answer.refusal(401)["code"]
    if code != "UNAUTHORIZED":
        raise Failed(f"{answer.request}: error.code: expected UNAUTHORIZED, got {show(code)}")


# --- errors ---


async def _unknown_package(on: Subject) -> None:
    _has_code(await on.unknown_package(), "PACKAGE_NOT_FOUND")


async def _unknown_tool(on: Subject) -> None:
    await on.works()
    _has_code(await on.execute(on.tool.request(name=NOBODY)), "TOOL_NOT_FOUND")


async def _invalid_request(on: Subject) -> None:
    _has_code(await on.malformed(), "INVALID_REQUEST")


def _has_code(answer: Answer, wanted: str) -> None:
    code = answer.error()["code"]
    if code != wanted:
        raise Failed(f"{answer.request}: error.code: expected {wanted}, got {show(code)}")


async def _unknown_path(on: Subject) -> None:
    answer = await on.unknown_path()
    if answer.status == 401:
        raise NotTested("the executor wants a key: give it with --api-key")
    answer.refusal(404)


# --- time ---


async def _timeout(on: Subject) -> str:
    if on.slow is None:
        raise NotTested("needs a tool that runs too long: --slow-tool PACKAGE@VERSION#NAME")
    told = await on.limit("maxExecutionTimeMs")
    limit = (told or EXECUTION_MS) / 1000
    # Whatever the package takes before the tool runs, it takes here too.
    loading = (await on.execute(on.slow.request(name=NOBODY))).seconds
    most = limit + on.patience.timeout
    async with on.progress.waiting("Waiting for the slow tool's timeout", most):
        answer = await on.execute(on.slow.request(), seconds=most)
    _timed_out(answer, limit, loading)
    if told is not None and answer.seconds < EARLY * limit:
        raise Failed(f"after {answer.seconds:.1f} s already, though GET /info says {limit:g} s")
    (await on.get("/health", keyed=True)).expect(200)
    return f"after {answer.seconds:.1f} s, the limit is {limit:g} s"


def _timed_out(answer: Answer, limit: float, loading: float) -> None:
    answer.expect(200)
    if answer.object().get("success") is True:
        ended, enough = "was done", answer.seconds - loading > limit
    else:
        error = answer.failure()
        if error["code"] == "EXECUTION_TIMEOUT":
            return
        ended = f"ended with {error['code']} ({show(error['message'])})"
        enough = answer.seconds >= EARLY * limit
    told = f"the slow tool {ended} after {answer.seconds:.1f} s"
    if enough:
        raise Failed(f"{told}: expected EXECUTION_TIMEOUT at {limit:g} s")
    raise NotTested(f"{told}; one is needed that runs for more than {limit:g} s")


async def _preflight_info(on: Subject) -> None:
    await on.capabilities()
    await preflight(on, "/info")


CHECKS: dict[str, Check] = {
    "GET /info returns capabilities": _info,
    "protocolVersion in /info": _info_version,
    "isolation in capabilities": _isolation,
    "executionModes in capabilities": _modes,
    "maxExecutionTimeMs in capabilities": _max_time,
    "maxRequestBodyBytes in capabilities": _max_body,
    "OPTIONS preflight works for /info": _preflight_info,
    "Authentication enforced when configured": _authentication,
    "A wrong key is refused": _wrong_key,
    "Execution timeout enforced": _timeout,
    "Request body limit enforced": refuses_more,
    "PACKAGE_NOT_FOUND for a package that does not exist": _unknown_package,
    "TOOL_NOT_FOUND for an export that does not exist": _unknown_tool,
    "INVALID_REQUEST for a request that is none": _invalid_request,
    "Unknown endpoint is a structured 404": _unknown_path,
}
