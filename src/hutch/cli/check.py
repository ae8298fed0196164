"""`hutch check`: whether a TPMJS executor, ours or any other, does what the specification says."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

import msgspec

from hutch.cli import loop
from hutch.cli.compliance.client import Client
from hutch.cli.compliance.examine import examine
from hutch.cli.compliance.progress import Progress
from hutch.cli.compliance.report import Report
from hutch.cli.compliance.subject import DEFAULT_TOOL, Patience, Subject, Tool
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
    patience: Patience | None = None,
) -> int:
    """The command's exit code: 0 when the executor has everything that it must have."""
    base = _base(url)
    key = _key(api_key)
    valid = _tool("--tool", tool, "--params", params) or msgspec.structs.replace(
        DEFAULT_TOOL, **({} if params is None else {"params": _params("--params", params)})
    )
    slow = _tool("--slow-tool", slow_tool, "--slow-params", slow_params)
    if slow is None and slow_params is not None:
        raise InvalidExecution("--slow-params", "expected --slow-tool with it")
    progress = Progress()

    async def run() -> Report:
        async with Client(base, key, progress.say) as client:
            return await examine(Subject(client, progress, valid, slow, patience))

    report = loop.run(run())
    # The report has the specification's marks, whatever the terminal's encoding is.
    text = report.json() if json else "\n".join(report.lines()).encode()
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()
    return 0 if report.passed else 1


def _base(url: str) -> str:
    """The address that paths are put behind."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        # Reading the port is what checks it.
        _ = parts.port
    except ValueError as error:
        raise InvalidExecution("URL", f"{url!r} is none: {error}") from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise InvalidExecution("URL", f"expected http://… or https://…, got {url!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidExecution("URL", "expected no user, query or fragment in it; --api-key gives a key")
    return f"{parts.scheme.lower()}://{parts.netloc}{parts.path.rstrip('/')}"


def _key(given: str | None) -> str | None:
    """`-` reads it from stdin, so that no process list shows it."""
    key = sys.stdin.readline().strip() if given == "-" else given
    if given is not None and (not key or not key.isascii() or not key.isprintable()):
        raise InvalidExecution("--api-key", "expected a key of printable ASCII")
    return key


def _tool(option: str, text: str | None, params_option: str, params: str | None) -> Tool | None:
    if text is None:
        return None
    spec, _, name = text.rpartition("#")
    # A scope begins with the same sign as a version.
    at = spec.find("@", 1)
    package, version = (spec, None) if at < 0 else (spec[:at], spec[at + 1 :])
    if not package or not name or version == "":
        raise InvalidExecution(option, f"expected PACKAGE@VERSION#NAME, got {text!r}")
    return Tool(package, version, name, {} if params is None else _params(params_option, params))


def _params(option: str, text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidExecution(option, f"expected a JSON object: {error}") from None
