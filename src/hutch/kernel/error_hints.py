"""Adds hints to errors of guests, which tell the author of the code what to change."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from hutch.errors import ExecutionError
from hutch.session.language import python_hint
from hutch.session.run import Result

_NOT_DEFINED = re.compile(r"'?([\w$]+)'? is not defined")
_NO_MODULES = "guests have no CommonJS modules and no packages, only tools and the objects of the language"
_NO_BROWSER = "guests do not run in a browser; they have tools and the objects of the language"
_NODE_GLOBAL = 'the quickjs engine has no Node globals; engine "deno" has {name}'
# Names that programs for Node or browsers use but guests do not have, each with a hint.
_MISSING = {
    **dict.fromkeys(("require", "module", "exports", "__dirname", "__filename"), _NO_MODULES),
    **dict.fromkeys(("window", "document", "localStorage", "XMLHttpRequest"), _NO_BROWSER),
    **dict.fromkeys(("process", "Buffer", "global"), _NODE_GLOBAL),
    "tools": "this run was given no tools",
}
_NODE_MODULES = '; modules of Node can be imported: `const { createHash } = await import("node:crypto")`'
# Errors that a missing namespace of tools causes.
_MISSING_NAMES = ("ReferenceError", "TypeError", "TypeCheckError")
_IS_MISSING = re.compile(r"undefined|is not defined|not a function|does not exist|Cannot find name")


def with_hint(source: str, engine: str, result: Result) -> Result:
    """Adds a hint to a syntax error, or to an error about a missing name."""
    error = result.error
    if error is None or error.name not in ("SyntaxError", "ReferenceError"):
        return result
    missing = _NOT_DEFINED.match(error.message)
    hint = None if missing is None else missing_name_hint(missing[1], engine)
    hint = hint or python_hint(source, error.message)
    return result if hint is None else _explained(result, error, hint)


def missing_name_hint(name: str, engine: str | None = None) -> str | None:
    """Returns what a guest can use instead of a name that programs for Node or browsers expect. `engine` is
    None if any engine may run the code.
    """
    hint = _MISSING.get(name)
    if hint is None or (hint is _NODE_GLOBAL and engine != "quickjs"):
        return None
    return hint.format(name=name) + (_NODE_MODULES if hint is _NO_MODULES and engine == "deno" else "")


def with_unavailable_servers(result: Result, reasons: Mapping[str, str]) -> Result:
    """Adds a warning with the reason for each MCP server that is not connected. If the error may be due to
    the missing tools of such servers, also adds the names of the servers to the error, but not the reasons,
    because a model may see the error.

    `reasons` maps the name of each such server to the reason. A reason may be empty.
    """
    if not reasons:
        return result
    warnings = tuple(
        f"the MCP server {name} is not connected{f': {reason}' if reason else ''}"
        for name, reason in reasons.items()
    )
    result = msgspec.structs.replace(result, warnings=warnings)
    error = result.error
    if error is None or error.name not in _MISSING_NAMES or not _IS_MISSING.search(error.message):
        return result
    undefined = _NOT_DEFINED.match(error.message)
    if undefined is not None and undefined[1] not in ("tools", *reasons):
        return result
    noun = "server" if len(reasons) == 1 else "servers"
    return _explained(result, error, f"not connected: MCP {noun} {', '.join(reasons)}")


def _explained(result: Result, error: ExecutionError, hint: str) -> Result:
    # A message of several lines ends with an excerpt of the code.
    separator = "\n" if "\n" in error.message else "; "
    message = f"{error.message}{separator}{hint}"
    explained = ExecutionError(error.code, message, error.name, error.line, error.column, error.stack)
    return msgspec.structs.replace(result, error=explained)
