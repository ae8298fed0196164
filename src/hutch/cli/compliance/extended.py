"""What the specification leaves open or optional, and what goes wrong in practice."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hutch.cli.compliance import body_limit, optional, version_1_1
from hutch.cli.compliance.answer import Answer, show
from hutch.cli.compliance.core import refuses_change
from hutch.cli.compliance.outcome import Failed, NoAnswer, NotSupported, NotTested
from hutch.cli.compliance.standard import NO_KEY
from hutch.cli.compliance.subject import DEFAULT_OUTPUT, DEFAULT_TOOL, EXECUTE, Check, Subject

# What an installer says of the machine it runs on.
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


async def _output(on: Subject) -> None:
    await on.works()
    if on.tool != DEFAULT_TOOL:
        raise NotTested("the expected output is known of the default tool only")
    output = (await on.valid()).object().get("output")
    if not isinstance(output, dict) or output.get("rendered") != DEFAULT_OUTPUT:
        raise Failed(f"expected {show({'rendered': DEFAULT_OUTPUT})} and more, got {show(output)}")


# --- routes ---


async def _double_slash(on: Subject) -> None:
    (await on.execute(on.tool.request(), f"/{EXECUTE}")).execution()


async def _under_api(on: Subject) -> None:
    if on.client.base.endswith("/api"):
        raise NotTested("the target is the /api path itself")
    answer = await on.execute(on.tool.request(), f"/api{EXECUTE}")
    if answer.status == 404:
        raise NotSupported
    answer.execution()
    for path in ("/api/health", "/api/info"):
        (await on.get(path, keyed=True)).expect(200)


async def _wrong_method(on: Subject) -> None:
    answer = await on.get(EXECUTE, keyed=True)
    if answer.status == 401:
        raise NotTested("the executor wants a key: give it with --api-key")
    answer.refusal(405, 404)


# --- keys ---


async def _open_without_key(on: Subject) -> None:
    if not await on.locked():
        raise NotTested(NO_KEY)
    for path in ("/health", "/info"):
        (await on.get(path)).expect(200)


async def _lower_case_bearer(on: Subject) -> None:
    if on.client.key is None or not await on.locked():
        raise NotTested(NO_KEY)
    (await on.execute(on.tool.request(), headers={"Authorization": f"bearer {on.client.key}"})).expect(200)


# --- packages ---


async def _no_package(on: Subject) -> None:
    """Harmless where they are taken for a command or a path, but no executor should do that."""
    for field, value in (
        ("packageName", f"{on.tool.package}; exit 0"),
        ("packageName", "../package"),
        ("packageName", "--version"),
        ("version", "file:."),
        ("version", "1.0.0 && exit 0"),
    ):
        answer = await on.execute(on.tool.request(**{field: value}))
        try:
            answer.refusal(400, 200)
        except Failed as error:
            raise Failed(f"{field} {value!r}: {error}") from None


async def _leaks_nothing(on: Subject) -> None:
    unknown_version = on.tool.request(version="999999.0.0")
    for answer in (await on.unknown_package(), await on.execute(unknown_version)):
        for told in _strings(answer.object()):
            if found := _LEAKS.search(told):
                raise Failed(f"it tells {found[0].strip()!r}: {show(told)}")


def _strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict() | list():
            for each in value.values() if isinstance(value, dict) else value:
                yield from _strings(each)


# --- load ---


async def _under_load(on: Subject) -> str:
    """Who cannot be served now is told when to come back."""
    done = (await on.load()).executions
    for each in done:
        if isinstance(each, NoAnswer):
            raise Failed(f"one of {len(done)} executions: {each}")
        if each.status in _BUSY:
            each.error()
            if not each.headers.get("retry-after"):
                raise Failed(f"one of {len(done)} executions: {each.status} without Retry-After")
        else:
            each.execution()
    busy = sum(isinstance(each, Answer) and each.status in _BUSY for each in done)
    return f"{len(done) - busy} answered, {busy} told to come back"


CHECKS: dict[str, Check] = {
    "The tool's output is returned": _output,
    "POST //execute-tool works": _double_slash,
    "The same routes under /api": _under_api,
    "A wrong method is a structured 405 or 404": _wrong_method,
    "POST /execute-tool refuses a packageName that is no string": refuses_change(packageName=7),
    "POST /execute-tool refuses env values that are no strings": refuses_change(env={"NAME": 7}),
    "POST /execute-tool refuses what is no package": _no_package,
    "A failed installation tells nothing of the server": _leaks_nothing,
    "GET /health and GET /info need no key": _open_without_key,
    "The scheme bearer is accepted in lower case": _lower_case_bearer,
    "A body of maxRequestBodyBytes is accepted": body_limit.accepts_limit,
    "Request body limit enforced without Content-Length": body_limit.refuses_more_in_chunks,
    "Executions at once are answered or told to come back": _under_load,
    **version_1_1.CHECKS,
    **optional.CHECKS,
}
