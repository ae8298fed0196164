"""Type-checks code that is not a toolscript against the declarations of its providers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hutch.errors import ExecutionError, InvalidExecution
from hutch.kernel.execution import Execution
from hutch.protocols.toolscript.checker.checker import Checker
from hutch.protocols.toolscript.checker.diagnostics import format_problems
from hutch.session.files.declarations import FILE_DECLARATIONS
from hutch.session.tools.provider import Provider

CODE_FILE = "code.ts"
MAX_DECLARATION_CHARS = 4 * 1024 * 1024
ERROR_NAME = "TypeCheckError"

_TOOLS = "tools"


async def check_code(checker: Checker, execution: Execution, *, strict: bool) -> ExecutionError | None:
    """Returns the error of the execution if its code has type errors, otherwise None."""
    declarations = _declarations(
        execution.providers, [*_input_names(execution.inputs)], execution.files is not None
    )
    if len(declarations) > MAX_DECLARATION_CHARS:
        raise InvalidExecution(
            "check",
            f"the declarations of the tools have {len(declarations)} characters;"
            f" the limit is {MAX_DECLARATION_CHARS}",
        )
    problems = await checker.check(execution.code, declarations, name=CODE_FILE, strict=strict)
    if not problems:
        return None
    first = problems[0]
    return ExecutionError(
        "validation_error", format_problems(problems), ERROR_NAME, first.line or None, first.column or None
    )


def _input_names(inputs: bytes | None) -> Iterable[str]:
    return () if inputs is None else msgspec.json.decode(inputs, type=dict[str, msgspec.Raw])


def _declarations(providers: Sequence[Provider], inputs: Sequence[str], has_files: bool) -> str:
    """Returns a module for the checker. It exports `tools`, and declares inputs and other providers as
    globals.
    """
    tools: list[str] = []
    others = [f"const {name}: any;" for name in inputs]
    for provider in providers:
        text = provider.declarations().strip().removeprefix("declare ")
        name = provider.name
        is_namespace = text.startswith(f"namespace {name} {{") and bool(provider.tools)
        if name == _TOOLS or name.startswith(f"{_TOOLS}."):
            # Declare `tools` as `any` unless its declarations are a namespace. A plain Execbox client may
            # describe its tools in any form, or not at all.
            tools.append(f"export declare {text}" if is_namespace else f"export declare const {_TOOLS}: any;")
        else:
            others.append(text if is_namespace else f"const {name}: any;")
    if has_files:
        taken = {*inputs, *(provider.name.partition(".")[0] for provider in providers)}
        others += [text for name, text in FILE_DECLARATIONS.items() if name not in taken]
    exported = "\n".join(tools) or f"export declare const {_TOOLS}: {{}};"
    return f"{exported}\ndeclare global {{\n" + "\n".join(others) + "\n}\n"
