"""`hutch check`: tests a TPMJS executor against the specification."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

import msgspec

from hutch.cli.support import event_loop
from hutch.cli.support.console import print_json, print_report
from hutch.conformance.progress import Progress
from hutch.conformance.tpmjs.client import ExecutorClient
from hutch.conformance.tpmjs.report import ExecutorReport
from hutch.conformance.tpmjs.suite import check_executor
from hutch.conformance.tpmjs.target import DEFAULT_TOOL, ExecutorTarget, SampleTool, Timeouts
from hutch.errors import InvalidExecution


def check(
    url: str,
    *,
    api_key: str | None = None,
    json: bool = False,
    tool: str | None = None,
    params: str | None = None,
    slow_tool: str | None = None,
    slow_params: str | None = None,
    timeouts: Timeouts | None = None,
) -> int:
    """Runs the conformance suite. Returns 0 if the executor meets all mandatory requirements."""
    base = _base_url(url)
    key = _read_api_key(api_key)
    valid = _parse_tool("--tool", tool, "--params", params) or msgspec.structs.replace(
        DEFAULT_TOOL, **({} if params is None else {"params": _parse_tool_params("--params", params)})
    )
    slow = _parse_tool("--slow-tool", slow_tool, "--slow-params", slow_params)
    if slow is None and slow_params is not None:
        raise InvalidExecution("--slow-params", "expected --slow-tool with it")
    progress = Progress()

    async def run() -> ExecutorReport:
        async with ExecutorClient(base, key, progress.report) as client:
            return await check_executor(ExecutorTarget(client, progress, valid, slow, timeouts))

    report = event_loop.run_async(run())
    if json:
        print_json(report.json())
    else:
        print_report(report.lines())
    return 0 if report.passed else 1


def _base_url(url: str) -> str:
    """Validates and normalizes the executor's URL."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port  # raises ValueError if the port is invalid
    except ValueError as error:
        raise InvalidExecution("URL", f"{url!r} is not a URL: {error}") from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise InvalidExecution("URL", f"expected http://… or https://…, got {url!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidExecution("URL", "expected no user, query or fragment; give a key with --api-key")
    return f"{parts.scheme.lower()}://{parts.netloc}{parts.path.rstrip('/')}"


def _read_api_key(option: str | None) -> str | None:
    """Returns the API key. For `-`, reads it from stdin, so that it does not appear in the process list."""
    key = sys.stdin.readline().strip() if option == "-" else option
    if option is not None and (not key or not key.isascii() or not key.isprintable()):
        raise InvalidExecution("--api-key", "expected a key of printable ASCII")
    return key


def _parse_tool(option: str, text: str | None, params_option: str, params: str | None) -> SampleTool | None:
    if text is None:
        return None
    spec, _, name = text.rpartition("#")
    # Start at the second character, because the scope of a package starts with @ too.
    at = spec.find("@", 1)
    package, version = (spec, None) if at < 0 else (spec[:at], spec[at + 1 :])
    if not package or not name or version == "":
        raise InvalidExecution(option, f"expected PACKAGE@VERSION#NAME, got {text!r}")
    return SampleTool(
        package, version, name, {} if params is None else _parse_tool_params(params_option, params)
    )


def _parse_tool_params(option: str, text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidExecution(option, f"expected a JSON object: {error}") from None
