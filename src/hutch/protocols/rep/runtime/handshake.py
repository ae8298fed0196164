"""Answers `Runtime.Capabilities` and `Runtime.Health` before the rest of the runtime is imported.

The first answer should come quickly, because orchestrators ask for the capabilities first, and some start a
process only for this request.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hutch._version import __version__
from hutch.protocols.rep import jsonrpc
from hutch.streams.lines import LineSplitter

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "hutch.step_kinds"
MAX_CONCURRENCY = 64
SHELL_KIND = "shell.run"
_KINDS_PACKAGE = "hutch.protocols.rep.kinds"

BUILTIN_KINDS: dict[str, str] = {
    "http.get": f"{_KINDS_PACKAGE}.http:GET",
    "http.request": f"{_KINDS_PACKAGE}.http:REQUEST",
    "mcp.call": f"{_KINDS_PACKAGE}.mcp:CALL",
    "tool.execute": f"{_KINDS_PACKAGE}.tool:EXECUTE",
    "ability.execute": f"{_KINDS_PACKAGE}.ability:EXECUTE",
    "toolscript.run": f"{_KINDS_PACKAGE}.script:RUN",
    "code.run": f"{_KINDS_PACKAGE}.code:RUN",
    "flow.run": f"{_KINDS_PACKAGE}.subflow:RUN",
    "for_each": f"{_KINDS_PACKAGE}.for_each:FOR_EACH",
    "switch": f"{_KINDS_PACKAGE}.control:SWITCH",
    "finish": f"{_KINDS_PACKAGE}.control:FINISH",
    "dsl.emit": f"{_KINDS_PACKAGE}.control:EMIT",
    "wait": f"{_KINDS_PACKAGE}.control:WAIT",
    "approve": f"{_KINDS_PACKAGE}.control:APPROVE",
    SHELL_KIND: f"{_KINDS_PACKAGE}.shell:RUN",
}

_CHUNK_BYTES = 256 * 1024


# --- requests ---


def serve_handshake(
    read: int, write: int, environ: Mapping[str, str], lines: LineSplitter
) -> list[bytes] | None:
    """Answers requests until a line needs the full runtime. Returns that line and the unanswered lines after
    it.

    Returns None at the end of the input, or if the output is closed.
    """
    methods: dict[str, jsonrpc.RpcMethod] = {
        "Runtime.Capabilities": lambda _: capabilities(environ),
        "Runtime.Health": health,
    }
    while True:
        data = _read_chunk(read)
        # Complete the last line, which may have no newline.
        received = lines.feed(data or b"\n")
        for index, line in enumerate(received):
            try:
                request = jsonrpc.parse_request(line) if line.strip() else None
            except jsonrpc.InvalidRpcRequest as refused:
                response: bytes | None = refused.response
            else:
                if request is not None and request.method not in methods:
                    return received[index:]
                response = None if request is None else answer_request(request, methods)
            if response is not None and not _write_all(write, response):
                return None
        if not data:
            return None


def answer_request(request: jsonrpc.RpcRequest, methods: Mapping[str, jsonrpc.RpcMethod]) -> bytes | None:
    """Answers a request. Ignores notifications, because REP defines none and JSON-RPC forbids answers to
    them.
    """
    if request.is_notification:
        print(f"hutch: ignored {request.method[:100]!r}: it has no id", file=sys.stderr)  # noqa: T201
        return None
    return jsonrpc.handle_request(request, methods)


def health(_: dict[str, Any], active: int = 0) -> dict[str, Any]:
    """Returns the result of `Runtime.Health`."""
    return {"ok": True, "details": {"active_runs": active}}


def _read_chunk(file: int) -> bytes:
    while True:
        try:
            return os.read(file, _CHUNK_BYTES)
        except BlockingIOError:
            select.select([file], [], [])
        except OSError:
            return b""


def _write_all(file: int, data: bytes) -> bool:
    while data:
        try:
            data = data[os.write(file, data) :]
        except BlockingIOError:
            select.select([], [file], [])
        except OSError:
            return False
    return True


# --- capabilities ---


def capabilities(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the result of `Runtime.Capabilities`."""
    return {
        "version": __version__,
        "step_kinds": [*builtin_kinds(environ), *extension_kinds()],
        "limits": {"concurrency": MAX_CONCURRENCY},
    }


def shell_is_allowed(environ: Mapping[str, str]) -> bool:
    """Returns True if the environment allows `shell.run`. The run needs the option `allow_shell` as well."""
    return environ.get("TRACE_MIND_ALLOW_SHELL") == "1"


def builtin_kinds(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the import path of each built-in kind, by name."""
    return {
        name: target
        for name, target in BUILTIN_KINDS.items()
        if name != SHELL_KIND or shell_is_allowed(environ)
    }


def extension_kinds() -> dict[str, EntryPoint]:
    """Returns the kinds of installed packages, by name. They cannot replace built-in kinds."""
    if not _may_have_extensions():
        return {}
    from importlib.metadata import entry_points

    return {
        point.name: point
        for point in entry_points(group=ENTRY_POINT_GROUP)
        if point.name not in BUILTIN_KINDS
    }


def _may_have_extensions() -> bool:
    """Returns False if certainly no package declares step kinds.

    This check is cheap, while importing `importlib.metadata` takes longer than everything else before the
    first response.
    """
    return any(_mentions_group(folder) for folder in sys.path)


def _mentions_group(folder: str) -> bool:
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208 - pathlib is not loaded yet
    except NotADirectoryError:
        # An archive cannot be inspected cheaply, so assume that it may contain extensions.
        return not folder.endswith(f"python{sys.version_info[0]}{sys.version_info[1]}.zip")
    except OSError:
        return False
    return any(
        _has_group(f"{folder or '.'}/{name}/entry_points.txt")
        for name in names
        if name.endswith((".dist-info", ".egg-info"))
    )


def _has_group(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return ENTRY_POINT_GROUP.encode() in file.read()
    except OSError:
        return False
