"""Extended checks of optional and undefined behaviour, and of mistakes that are common in practice."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hutch.conformance.outcome import Check, CheckFailed, NotSupported, NotTested
from hutch.conformance.tpmjs import level2, optional, version_1_1
from hutch.conformance.tpmjs.client import NoResponse
from hutch.conformance.tpmjs.level1 import refuses_change
from hutch.conformance.tpmjs.level2 import NO_KEY
from hutch.conformance.tpmjs.response import ExecutorResponse, show
from hutch.conformance.tpmjs.target import DEFAULT_OUTPUT, DEFAULT_TOOL, EXECUTE, ExecutorTarget

# Matches details about the server that installers print.
_LEAKS = re.compile(
    r"""npm\ (?:ERR!|error|warn)
    | node_modules
    | debug-\d+\.log
    | file://
    | (?:^|[\s'"`(=:])/(?:app|data|etc|home|mnt|nix|opt|private|proc|root|run|srv|tmp|usr|users|var)/
    | \b[A-Za-z]:\\
    | \n\s+at\ .+:\d+""",
    re.VERBOSE | re.IGNORECASE,
)
_BUSY = (429, 503)


async def _output(target: ExecutorTarget) -> None:
    await target.require_success()
    if target.tool != DEFAULT_TOOL:
        raise NotTested("the expected output is known only for the default tool")
    output = (await target.valid()).json_object().get("output")
    if not isinstance(output, dict) or output.get("rendered") != DEFAULT_OUTPUT:
        raise CheckFailed(f"expected {show({'rendered': DEFAULT_OUTPUT})} and more, got {show(output)}")


# --- routes ---


async def _double_slash(target: ExecutorTarget) -> None:
    (await target.execute(target.tool.request(), f"/{EXECUTE}")).execution()


async def _under_api(target: ExecutorTarget) -> None:
    if target.client.base_url.endswith("/api"):
        raise NotTested("the target is the /api path itself")
    response = await target.execute(target.tool.request(), f"/api{EXECUTE}")
    if response.status == 404:
        raise NotSupported
    response.execution()
    for path in ("/api/health", "/api/info"):
        (await target.get(path, with_key=True)).expect(200)


async def _wrong_method(target: ExecutorTarget) -> None:
    response = await target.get(EXECUTE, with_key=True)
    if response.status == 401:
        raise NotTested("the executor requires a key: give it with --api-key")
    response.refusal(405, 404)


# --- keys ---


async def _open_without_key(target: ExecutorTarget) -> None:
    if not await target.requires_key():
        raise NotTested(NO_KEY)
    for path in ("/health", "/info"):
        (await target.get(path)).expect(200)


async def _lower_case_bearer(target: ExecutorTarget) -> None:
    if target.client.key is None or not await target.requires_key():
        raise NotTested(NO_KEY)
    (
        await target.execute(target.tool.request(), headers={"Authorization": f"bearer {target.client.key}"})
    ).expect(200)


# --- packages ---


async def _refuses_bad_packages(target: ExecutorTarget) -> None:
    """Checks that invalid packages are refused. The values are harmless even if an executor uses them as a
    command or a path.
    """
    for field, value in (
        ("packageName", f"{target.tool.package}; exit 0"),
        ("packageName", "../package"),
        ("packageName", "--version"),
        ("version", "file:."),
        ("version", "1.0.0 && exit 0"),
    ):
        response = await target.execute(target.tool.request(**{field: value}))
        try:
            response.refusal(400, 200)
        except CheckFailed as error:
            raise CheckFailed(f"{field} {value!r}: {error}") from None


async def _reveals_nothing(target: ExecutorTarget) -> None:
    unknown_version = target.tool.request(version="999999.0.0")
    for response in (await target.unknown_package(), await target.execute(unknown_version)):
        for string in _strings(response.json_object()):
            if match := _LEAKS.search(string):
                raise CheckFailed(f"it reveals {match[0].strip()!r}: {show(string)}")


def _strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict() | list():
            for child in value.values() if isinstance(value, dict) else value:
                yield from _strings(child)


# --- load ---


async def _under_load(target: ExecutorTarget) -> str:
    """Checks the behaviour under load. A busy executor must send Retry-After."""
    results = (await target.load()).executions
    for result in results:
        if isinstance(result, NoResponse):
            raise CheckFailed(f"one of {len(results)} executions: {result}")
        if result.status in _BUSY:
            result.error()
            if not result.headers.get("retry-after"):
                raise CheckFailed(f"one of {len(results)} executions: {result.status} without Retry-After")
        else:
            result.execution()
    busy = sum(isinstance(result, ExecutorResponse) and result.status in _BUSY for result in results)
    return f"{len(results) - busy} answered, {busy} with Retry-After"


CHECKS: tuple[Check[ExecutorTarget], ...] = (
    Check("The tool's output is returned", _output),
    Check("POST //execute-tool works", _double_slash),
    Check("The same routes under /api", _under_api),
    Check("A wrong method is a structured 405 or 404", _wrong_method),
    Check("POST /execute-tool refuses a packageName that is not a string", refuses_change(packageName=7)),
    Check("POST /execute-tool refuses env values that are not strings", refuses_change(env={"NAME": 7})),
    Check("POST /execute-tool refuses invalid packages and versions", _refuses_bad_packages),
    Check("A failed installation reveals nothing about the server", _reveals_nothing),
    Check("GET /health and GET /info need no key", _open_without_key),
    Check("The scheme bearer is accepted in lower case", _lower_case_bearer),
    Check("A body of maxRequestBodyBytes is accepted", level2.accepts_limit),
    Check("Request body limit enforced without Content-Length", level2.refuses_chunks_above_limit),
    Check("Concurrent executions are answered or get Retry-After", _under_load),
    *version_1_1.CHECKS,
    *optional.CHECKS,
)
