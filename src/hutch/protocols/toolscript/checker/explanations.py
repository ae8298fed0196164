"""Explains problems of scripts: adds advice on what to write instead, or the reason why a
module is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from hutch.kernel.error_hints import missing_name_hint
from hutch.protocols.toolscript.checker.diagnostics import MAX_SHOWN, InvalidScript, ScriptProblem
from hutch.protocols.toolscript.checker.imports import import_objection
from hutch.protocols.toolscript.checker.source_text import SourceText
from hutch.session.language import python_hint
from hutch.session.tools.names import letters

MAX_LISTED_NAMES = 20
# TypeScript's codes for a missing module. Deno's own messages have the code 0.
_MISSING_MODULE_CODES = (2307, 2591, 2792, 2882, 0)
_UNKNOWN_NAME_CODES = (2304, 2552)
_UNKNOWN_NAME = re.compile(r"Cannot find name '([\w$]+)'")
_QUOTED = re.compile(r"""["']([^"']*)["']""")
_MISSING_MEMBER = re.compile(r"Property '([\w$]+)' does not exist on type '(?:typeof )?([\w$]+)'\.$")
_PROMISE = re.compile(r"\b[Tt]ypes? (?:.* and )?'Promise<")
# Names that TypeScript's messages use for `tools`: an interface in the declarations of a gateway, a namespace
# in the declarations for other code.
_TOOLS_TYPES = ("Tools", "tools")


def explain_language(code: str, error: InvalidScript) -> InvalidScript:
    """If the script is Python, replaces all problems by one problem with a hint, because the messages of the
    TypeScript compiler do not help.
    """
    for problem in error.problems[:MAX_SHOWN]:
        if hint := python_hint(code, problem.message):
            message = f"{problem.message.rstrip('.')}; {hint}."
            return InvalidScript([msgspec.structs.replace(problem, message=message)])
    return error


def explain(problem: ScriptProblem, declarations: str) -> ScriptProblem:
    """Adds advice to the message of a problem, if there is a known correction.

    `declarations` are the declarations that the script was checked with.
    """
    message = (
        _server_name(problem, declarations)
        or _missing_name(problem)
        or _missing_module(problem)
        or _missing_member(problem, declarations)
        or _forgotten_await(problem)
    )
    return problem if message is None else msgspec.structs.replace(problem, message=message)


def _server_name(problem: ScriptProblem, declarations: str) -> str | None:
    """Suggests `tools.github` if a script uses the name of a server, such as `github`, as a variable."""
    unknown = _UNKNOWN_NAME.match(problem.message) if problem.code in _UNKNOWN_NAME_CODES else None
    if unknown is None:
        return None
    name = unknown[1]
    if name in _names_in(declarations, "Tools") or name in _names_in(declarations, "tools"):
        return f"Cannot find name '{name}'. Did you mean tools.{name}?"
    return None


def _missing_name(problem: ScriptProblem) -> str | None:
    """Replaces TypeScript's advice to install type definitions for Node or a browser."""
    unknown = _UNKNOWN_NAME.match(problem.message)
    hint = None if unknown is None else missing_name_hint(unknown[1])
    return None if unknown is None or hint is None else f"Cannot find name '{unknown[1]}': {hint}."


def _missing_module(problem: ScriptProblem) -> str | None:
    """Replaces the message "module not found" by the reason why a toolscript cannot import the module."""
    if problem.code not in _MISSING_MODULE_CODES:
        return None
    line = SourceText(problem.source_line)
    specifier = _QUOTED.match(line.text, line.index_at(1, problem.column))
    return import_objection(specifier[1]) if specifier else None


def _missing_member(problem: ScriptProblem, declarations: str) -> str | None:
    """Adds the existing members to a problem about a missing member of `tools` or of a server."""
    missing = _MISSING_MEMBER.match(problem.message)
    if missing is None:
        return None
    name, type_name = missing.groups()
    members = _names_in(declarations, type_name)
    if not members:
        return None
    message = problem.message.rstrip(".")
    if type_name not in _TOOLS_TYPES:
        server = next(_servers_of(declarations, type_name), type_name)
        return f"{message}: tools.{server} has {_listed(members)}."
    # The missing member may be a qualified name, such as `github__create_issue`.
    for server in members:
        for tool in _names_in(declarations, _type_of(declarations, server)):
            if letters(f"{server}{tool}") == letters(name):
                return f"{message}. Did you mean tools.{server}.{tool}?"
    return f"{message}: tools has {_listed(members)}."


def _forgotten_await(problem: ScriptProblem) -> str | None:
    if not _PROMISE.search(problem.message) or "await" in problem.message:
        return None
    first, *rest = problem.message.split("\n")
    return "\n".join((f"{first.rstrip('.')}. Did you forget await?", *rest))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


# --- declarations ---


def _names_in(declarations: str, type_name: str) -> list[str]:
    """Returns the names of the members of a type.

    In the declarations of a gateway, the type is an interface. In other declarations, it is a namespace:
    either `tools`, whose members include the nested namespaces, or `tools.NAME`.
    """
    name = re.escape(type_name)
    interface = re.search(rf"^export interface {name} \{{\n(.*?)^\}}", declarations, re.M | re.S)
    if interface is not None:
        return re.findall(r"^  ([\w$]+)[(:]", interface[1], re.M)
    names: list[str] = []
    dotted = "tools" if type_name == "tools" else rf"tools\.{name}"
    for body in re.findall(rf"^export declare namespace {dotted} \{{\n(.*?)^\}}", declarations, re.M | re.S):
        names += re.findall(r"^  (?:export )?function ([\w$]+)", body, re.M)
    if type_name == "tools":
        names += re.findall(r"^export declare namespace tools\.([\w$]+) \{", declarations, re.M)
    return names


def _type_of(declarations: str, server: str) -> str:
    found = re.search(rf"^  {re.escape(server)}: ([\w$]+);$", declarations, re.M)
    return server if found is None else found[1]


def _servers_of(declarations: str, type_name: str) -> Iterator[str]:
    return iter(re.findall(rf"^  ([\w$]+): {re.escape(type_name)};$", declarations, re.M))
