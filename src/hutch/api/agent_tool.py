"""Wraps the execution of code as one function that agent frameworks can offer to a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from hutch.errors import InvalidTool
from hutch.kernel.error_hints import code_warnings
from hutch.session.run import Result
from hutch.session.tools.names import is_identifier
from hutch.session.tools.provider import Provider

_DESCRIPTION = """\
Run JavaScript or TypeScript in a sandbox and return its result.

The code is the body of an async function: call tools with `await`, and `return` the result, which is sent as
JSON. `console.log` adds lines to the output. The code has no network, no files and no packages{tools}

Args:
    code: Source of the program, without Markdown.
"""
_TOOLS = """. It can call these tools:

{declarations}"""


def async_tool(
    run: Callable[[str], Awaitable[Result]], providers: Sequence[Provider], name: str, max_chars: int
) -> Callable[[str], Awaitable[str]]:
    """Returns an async function with one parameter, `code`. The docstring of the function
    describes it to the model.
    """

    async def run_code(code: str) -> str:
        return text_for_model(await run(code), max_chars)

    _describe(run_code, providers, name)
    return run_code


def sync_tool(
    run: Callable[[str], Result], providers: Sequence[Provider], name: str, max_chars: int
) -> Callable[[str], str]:
    """Like `async_tool`, for frameworks that call tools without an event loop."""

    def run_code(code: str) -> str:
        return text_for_model(run(code), max_chars)

    _describe(run_code, providers, name)
    return run_code


def _describe(function: Callable[[str], object], providers: Sequence[Provider], name: str) -> None:
    if not is_identifier(name):
        raise InvalidTool(f"The name {name!r} is not an identifier.", remedy="Use a name such as run_code.")
    declarations = "\n".join(provider.declarations().strip() for provider in providers)
    tools = _TOOLS.format(declarations=declarations) if declarations else "."
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _DESCRIPTION.format(tools=tools)


def text_for_model(result: Result, max_chars: int) -> str:
    """Formats a result for a model: the value as JSON or the error, then the log lines.

    The value and the logs have at most `max_chars` characters each.
    """
    if result.error is not None:
        line = f" at line {result.error.line}" if result.error.line else ""
        text = f"The code failed ({result.error.code}){line}: {result.error.message}"
    elif result.result_json is None:
        text = "The code returned no value."
    else:
        text = result.result_json.decode()
    if len(text) > max_chars:
        text = f"{text[:max_chars]}… ({len(text)} characters; return less)"
    for warning in code_warnings(result):
        if warning not in text:
            text = f"{text}\n\nWarning: {warning}"
    logs = "\n".join(result.logs)
    if len(logs) > max_chars:
        logs = f"… {logs[-max_chars:]}"
    return f"{text}\n\nLogs:\n{logs}" if logs else text
