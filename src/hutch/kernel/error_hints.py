"""Adds hints to errors of guests, which tell the author of the code what to change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from hutch.errors import ExecutionError
from hutch.session.calls.description import FORGOTTEN_AWAIT
from hutch.session.language import python_hint
from hutch.session.run import Result
from hutch.session.tools.provider import Provider
from hutch.text import did_you_mean

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
# Names of the errors that occur if a guest uses a namespace of tools that it does not have.
_MISSING_NAMES = ("ReferenceError", "TypeError", "TypeCheckError")
PROMISE_TEXT = "[object Promise]"
PROMISE_WARNING = f"the result contains {PROMISE_TEXT}: a promise was used as a text; did you forget await?"
# Messages of QuickJS and V8 when code uses a promise as if it were the result of a call.
_USED_AS_RESULT = re.compile(r"undefined|not a function|not iterable")
# Matches a tool call without `await` if the code assigns its promise to a variable or destructures it.
_NOT_AWAITED = re.compile(
    r"(?:(?P<variable>[\w$]+)|(?P<rest>[}\]]))\s*=\s*(?P<call>tools(?:\.[\w$]+){1,2})\s*\("
)
_CALL = re.compile(r"(?<![\w$.])([\w$]+)\.([\w$]+)\s*\(")
# Longer code gets no hint about `await`, because searching it with patterns would take too long.
_MAX_SOURCE_CHARS = 100_000
_MAX_LINE_CHARS = 2_000
_IS_MISSING = re.compile(r"undefined|is not defined|not a function|does not exist|Cannot find name")


def with_hint(source: str, engine: str, result: Result, providers: Sequence[Provider] = ()) -> Result:
    """Adds a hint to a syntax error, to an error about a missing name, or to an error that a forgotten
    `await` causes.
    """
    error = result.error
    if error is None:
        return _with_promise_warning(result)
    hint = None
    if error.name in ("SyntaxError", "ReferenceError"):
        missing = _NOT_DEFINED.match(error.message)
        if missing is not None:
            hint = missing_name_hint(missing[1], engine) if missing[1] != "tools" or not providers else None
            hint = hint or _tool_name_hint(missing[1], providers)
        hint = hint or python_hint(source, error.message)
    elif error.code == "serialization_error" and "await" not in error.message:
        # For example, the code calculated NaN with the promise of a call.
        hint = next((warning for warning in result.warnings if warning.endswith(FORGOTTEN_AWAIT)), None)
    elif error.name == "TypeError" and error.line is not None and providers:
        lines = source.split("\n", error.line)
        line = lines[error.line - 1] if error.line <= len(lines) else ""
        if len(line) <= _MAX_LINE_CHARS:
            hint = _namespace_hint(line, providers) or _await_hint(source, line, error.message)
    return result if hint is None else _explained(result, error, hint)


def _tool_name_hint(name: str, providers: Sequence[Provider]) -> str | None:
    """Suggests `tools.add` for `add`, `tools.github` for `github`, and `tools` for `tool`."""
    for provider in providers:
        if name in provider.tools:
            return f"did you mean {provider.name}.{name}?"
        if provider.name.rpartition(".")[2] == name:
            return f"did you mean {provider.name}?"
    similar = did_you_mean(name, {provider.name.partition(".")[0] for provider in providers})
    return None if similar is None else f"did you mean {similar}?"


def _namespace_hint(line: str, providers: Sequence[Provider]) -> str | None:
    """Suggests `tools.files.search` for `files.search` if the guest's own `files` has no `search`."""
    by_name = {provider.name.rpartition(".")[2]: provider for provider in providers if "." in provider.name}
    for namespace, member in _CALL.findall(line):
        provider = by_name.get(namespace)
        if provider is not None and member in provider.tools:
            return f"did you mean {provider.name}.{member}?"
    return None


def _await_hint(source: str, line: str, message: str) -> str | None:
    """Names a tool call whose promise the code uses as if it were the result."""
    if not _USED_AS_RESULT.search(message) or len(source) > _MAX_SOURCE_CHARS:
        return None
    for match in _NOT_AWAITED.finditer(source):
        variable, call = match["variable"], match["call"]
        name = re.escape(variable or "")
        # A destructured promise is always a mistake. A variable may be awaited later.
        is_read = rf"(?:\bof\s+|\.\.\.){name}(?![\w$])|(?<![\w$.]){name}\s*(?:\.(?!then\b)|\[)"
        if match["rest"] or re.search(is_read, line):
            return f"{call}() returns a promise; did you forget await?"
    return None


def _with_promise_warning(result: Result) -> Result:
    """Warns about a promise that became a text. The code is not refused, because the text may be intended."""
    if result.result_json is None or PROMISE_TEXT.encode() not in result.result_json:
        return result
    return msgspec.structs.replace(result, warnings=(*result.warnings, PROMISE_WARNING))


def code_warnings(result: Result) -> list[str]:
    """Returns the warnings about the code itself, which its author can use."""
    return [
        warning
        for warning in result.warnings
        if warning == PROMISE_WARNING or warning.endswith(FORGOTTEN_AWAIT)
    ]


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
    result = msgspec.structs.replace(result, warnings=(*result.warnings, *warnings))
    error = result.error
    if error is None or error.name not in _MISSING_NAMES or not _IS_MISSING.search(error.message):
        return result
    undefined = _NOT_DEFINED.match(error.message)
    if undefined is not None and undefined[1] not in ("tools", *reasons):
        return result
    noun = "server" if len(reasons) == 1 else "servers"
    return _explained(result, error, f"not connected: MCP {noun} {', '.join(reasons)}")


def _explained(result: Result, error: ExecutionError, hint: str) -> Result:
    # A message of several lines ends with an excerpt of the code, so the hint goes on its own line.
    separator = "\n" if "\n" in error.message else "; "
    message = f"{error.message}{separator}{hint}"
    explained = ExecutionError(error.code, message, error.name, error.line, error.column, error.stack)
    return msgspec.structs.replace(result, error=explained)
