"""Standard requirements: level 2 of the specification."""

from __future__ import annotations

import msgspec

from hutch.conformance.outcome import Check, CheckFailed, FeatureMissing, NotTested
from hutch.conformance.tpmjs.client import upload
from hutch.conformance.tpmjs.level1 import expect_preflight
from hutch.conformance.tpmjs.response import ExecutorResponse, is_natural, show, text
from hutch.conformance.tpmjs.target import EXECUTE, UNKNOWN, ExecutorTarget

ISOLATIONS = ("none", "process", "container", "vm")
# Minimum timeout, and the timeout that the specification recommends.
MIN_EXECUTION_MS = 60_000
EXECUTION_MS = 120_000
# If an execution times out before this fraction of the limit in /info, the executor contradicts /info.
MIN_TIMEOUT_SHARE = 0.9

# Larger body limits are not tested.
MAX_BODY_BYTES = 64 * 1024 * 1024

NO_KEY = "needs an executor that requires a key, and this key in --api-key"


# --- /info ---


async def _info(target: ExecutorTarget) -> None:
    response = await target.info()
    if response.status == 401 and target.client.key is None:
        raise NotTested("the executor requires a key: give it with --api-key")
    response.expect(200)
    body = response.json_object()
    text(body, "name", "GET /info: ")
    text(body, "version", "GET /info: ")
    capabilities = body.get("capabilities")
    if not isinstance(capabilities, dict):
        raise CheckFailed(f"GET /info: capabilities: expected an object, got {show(capabilities)}")
    for name in ("supportsStreaming", "supportsCallbacks", "supportsCaching"):
        if not isinstance(capabilities.get(name, False), bool):
            raise CheckFailed(
                f"GET /info: capabilities.{name}: expected true or false, got {show(capabilities[name])}"
            )


async def _info_version(target: ExecutorTarget) -> None:
    await target.capabilities()
    body = (await target.info()).json_object()
    if "protocolVersion" not in body:
        raise FeatureMissing("there is no such field")
    text(body, "protocolVersion", "GET /info: ")


async def _capability(target: ExecutorTarget, name: str) -> object:
    capabilities = await target.capabilities()
    if name not in capabilities:
        raise FeatureMissing(f"there is no such field; the fields are {', '.join(capabilities) or 'none'}")
    return capabilities[name]


async def _isolation(target: ExecutorTarget) -> None:
    value = await _capability(target, "isolation")
    if value not in ISOLATIONS:
        raise CheckFailed(f"expected one of {', '.join(ISOLATIONS)}; got {show(value)}")


async def _modes(target: ExecutorTarget) -> None:
    value = await _capability(target, "executionModes")
    if not isinstance(value, list) or "sync" not in value:
        raise CheckFailed(f'expected a list with "sync", got {show(value)}')


async def _max_time(target: ExecutorTarget) -> None:
    value = await _capability(target, "maxExecutionTimeMs")
    if not is_natural(value) or value < MIN_EXECUTION_MS:  # type: ignore[operator]
        raise CheckFailed(f"expected an integer of at least {MIN_EXECUTION_MS}, got {show(value)}")


async def _max_body(target: ExecutorTarget) -> None:
    value = await _capability(target, "maxRequestBodyBytes")
    if not is_natural(value) or not value:
        raise CheckFailed(f"expected a number above 0, got {show(value)}")


async def _preflight_info(target: ExecutorTarget) -> None:
    await target.capabilities()
    await expect_preflight(target, "/info")


# --- keys ---


async def _authentication(target: ExecutorTarget) -> None:
    response = await target.without_key()
    if response.status != 401 and target.client.key is None:
        raise NotTested(NO_KEY)
    _expect_unauthorized(response)
    if target.client.key is None:
        raise NotTested("it is refused without a key; give --api-key to see that the key is accepted")
    (await target.valid()).expect(200)


async def _wrong_key(target: ExecutorTarget) -> None:
    if not await target.requires_key():
        raise NotTested(NO_KEY)
    _expect_unauthorized(
        await target.post(target.tool.request(), headers={"Authorization": f"Bearer {UNKNOWN}"})
    )


def _expect_unauthorized(response: ExecutorResponse) -> None:
    code = response.refusal(401)["code"]
    if code != "UNAUTHORIZED":
        raise CheckFailed(f"{response.request}: error.code: expected UNAUTHORIZED, got {show(code)}")


# --- errors ---


async def _unknown_package(target: ExecutorTarget) -> None:
    _expect_code(await target.unknown_package(), "PACKAGE_NOT_FOUND")


async def _unknown_tool(target: ExecutorTarget) -> None:
    await target.require_success()
    _expect_code(await target.execute(target.tool.request(name=UNKNOWN)), "TOOL_NOT_FOUND")


async def _invalid_request(target: ExecutorTarget) -> None:
    _expect_code(await target.malformed(), "INVALID_REQUEST")


def _expect_code(response: ExecutorResponse, code: str) -> None:
    actual = response.error()["code"]
    if actual != code:
        raise CheckFailed(f"{response.request}: error.code: expected {code}, got {show(actual)}")


async def _unknown_path(target: ExecutorTarget) -> None:
    response = await target.unknown_path()
    if response.status == 401:
        raise NotTested("the executor requires a key: give it with --api-key")
    response.refusal(404)


# --- time ---


async def _timeout(target: ExecutorTarget) -> str:
    if target.slow_tool is None:
        raise NotTested("needs a tool that runs too long: --slow-tool PACKAGE@VERSION#NAME")
    declared = await target.limit("maxExecutionTimeMs")
    limit = (declared or EXECUTION_MS) / 1000
    # Measure how long loading the package takes: a request for an unknown tool takes only this time.
    loading = (await target.execute(target.slow_tool.request(name=UNKNOWN))).seconds
    max_seconds = limit + target.timeouts.installation
    async with target.progress.waiting("Waiting for the slow tool's timeout", max_seconds):
        response = await target.execute(target.slow_tool.request(), seconds=max_seconds)
    _expect_timeout(response, limit, loading)
    if declared is not None and response.seconds < MIN_TIMEOUT_SHARE * limit:
        raise CheckFailed(f"after {response.seconds:.1f} s already, but GET /info reports {limit:g} s")
    (await target.get("/health", with_key=True)).expect(200)
    return f"after {response.seconds:.1f} s, the limit is {limit:g} s"


def _expect_timeout(response: ExecutorResponse, limit: float, loading: float) -> None:
    response.expect(200)
    if response.json_object().get("success") is True:
        end, ran_long_enough = "was done", response.seconds - loading > limit
    else:
        error = response.failure()
        if error["code"] == "EXECUTION_TIMEOUT":
            return
        end = f"ended with {error['code']} ({show(error['message'])})"
        ran_long_enough = response.seconds >= MIN_TIMEOUT_SHARE * limit
    summary = f"the slow tool {end} after {response.seconds:.1f} s"
    if ran_long_enough:
        raise CheckFailed(f"{summary}: expected EXECUTION_TIMEOUT at {limit:g} s")
    raise NotTested(f"{summary}; the check needs a tool that runs for more than {limit:g} s")


# --- body limit ---


async def refuses_above_limit(target: ExecutorTarget) -> None:
    """Sends one byte more than the limit."""
    await _expect_refusal(target, chunked=False)


async def refuses_chunks_above_limit(target: ExecutorTarget) -> None:
    """Sends one byte more than the limit, without a Content-Length."""
    await _expect_refusal(target, chunked=True)


async def _expect_refusal(target: ExecutorTarget, *, chunked: bool) -> None:
    body = await _padded(target, 1)
    await target.require_access()
    response = await upload(target.client, EXECUTE, body, target.timeouts.execution, chunked=chunked)
    response.refusal(413, 400)


async def accepts_limit(target: ExecutorTarget) -> None:
    """Sends exactly as many bytes as the limit allows."""
    (await target.execute(await _padded(target, 0))).execution()


async def _padded(target: ExecutorTarget, extra: int) -> bytes:
    """Returns the valid request, padded with spaces to the limit plus `extra` bytes."""
    limit = await target.limit("maxRequestBodyBytes")
    if limit is None:
        raise NotTested("GET /info has no maxRequestBodyBytes")
    if limit > MAX_BODY_BYTES:
        raise NotTested(f"the limit of {limit} bytes is too much to send")
    if not target.client.is_direct:
        raise NotTested("the environment names a proxy, which may have a limit of its own")
    return msgspec.json.encode(target.tool.request()).ljust(limit + extra)


CHECKS: tuple[Check[ExecutorTarget], ...] = (
    Check("GET /info returns capabilities", _info),
    Check("protocolVersion in /info", _info_version),
    Check("isolation in capabilities", _isolation),
    Check("executionModes in capabilities", _modes),
    Check("maxExecutionTimeMs in capabilities", _max_time),
    Check("maxRequestBodyBytes in capabilities", _max_body),
    Check("OPTIONS preflight works for /info", _preflight_info),
    Check("Authentication enforced when configured", _authentication),
    Check("A wrong key is refused", _wrong_key),
    Check("Execution timeout enforced", _timeout),
    Check("Request body limit enforced", refuses_above_limit),
    Check("PACKAGE_NOT_FOUND for a package that does not exist", _unknown_package),
    Check("TOOL_NOT_FOUND for an export that does not exist", _unknown_tool),
    Check("INVALID_REQUEST for an invalid request", _invalid_request),
    Check("Unknown endpoint is a structured 404", _unknown_path),
)
