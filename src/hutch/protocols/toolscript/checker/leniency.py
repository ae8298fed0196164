"""Decides which problems of ordinary JavaScript a lenient check allows.

Names, arguments and declared results of tools are checked strictly. Elsewhere many problems are allowed,
because TypeScript also rejects correct programs such as `const counts = {}; counts[key] = 1`. A problem is
about tools if it disappears when all tools have the type `any`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hutch.protocols.toolscript.checker.diagnostics import ScriptProblem
from hutch.protocols.toolscript.checker.source_text import SourceText

ANY_TOOLS = """\
export declare const tools: any;
export declare class ToolError extends Error { server: string; tool: string; details: any }
"""

# Codes about implicit `any`, except 7027 to 7030, which are about code that has no effect.
_IMPLICIT_ANY = frozenset({*range(7005, 7027), *range(7031, 7058), 2683})
_UNKNOWN_VALUE = frozenset({2571, 18046})
_POSSIBLY_NULL = frozenset({2531, 2532, 2533, 2721, 2722, 2723, 18047, 18048, 18049})
_UNINITIALIZED_PROPERTY = 2564
_ALWAYS_ALLOWED = _IMPLICIT_ANY | _UNKNOWN_VALUE | _POSSIBLY_NULL | {_UNINITIALIZED_PROPERTY}
_IMPLICIT_ANY_ELEMENT = 7053
_WRONG_ARGUMENT = 2345
# A value has another type than expected, or lacks properties.
_NOT_ASSIGNABLE = frozenset({2322, 2739, 2740, 2741, _WRONG_ARGUMENT})
_NO_PROPERTY = frozenset({2339, 2551})
# Wrong number of arguments, no matching overload, or an operand that is not a number, as in `date - date`.
_ALLOWED_OUTSIDE_TOOLS = frozenset({2362, 2363, 2365, 2554, 2555, 2556, 2769})

_OF_UNKNOWN = re.compile(
    r"(?:Argument of type|Type) 'unknown' is not assignable|does not exist on type 'unknown'"
)
# A string that is passed where an enumeration is expected, as in `let state = "open"`, whose type is
# `string`.
_WIDENED_STRING = re.compile(r"""Type 'string' is not assignable to type '"[^\n]*\Z""")
_TO_NEVER = re.compile(r"to (?:parameter of )?type 'never'")
_TYPE_OF_OBJECT = re.compile(r"does not exist on type '(.*?)'(?:\.|$)", re.M)
# Types of values to which a program may add properties: object literals, functions, errors, and elements of
# empty lists (`never`).
_EXTENSIBLE = re.compile(r"[{(]|never$|object$|\w*Error$")
_EMPTY_OBJECT = "on type '{}'"
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
# The compiler marks the key of a property whose value is wrong, as in `{ state: "opne" }`.
_BEFORE_KEY = re.compile(r"(?:^|[{,])\s*$")
_CALLEE = re.compile(r"([A-Za-z_$][\w$]*)\s*\([^()]*$")


def is_allowed(problem: ScriptProblem, files: Mapping[str, str]) -> bool:
    """Returns True if the problem is allowed everywhere, even where the script uses tools."""
    code, message = problem.code, problem.message
    if code == _IMPLICIT_ANY_ELEMENT:
        # Report literal keys, because a literal key may be the misspelt name of a tool.
        return "Property '" not in message
    if code in _ALWAYS_ALLOWED or _OF_UNKNOWN.search(message) or _WIDENED_STRING.search(message):
        return True
    if code in _NO_PROPERTY and _EMPTY_OBJECT in message:
        # Report the problem for `tools` itself, which has the type `{}` if there are no tools.
        line = SourceText(problem.source_line)
        return not line.text[: line.index_at(1, problem.column)].endswith("tools.")
    name = _marked_name(problem) if code in _NOT_ASSIGNABLE else None
    if name is None:
        return False
    # A variable without a type annotation, or an object that gets its properties later, as in
    # `const args = {}; args.path = "x"`.
    is_untyped = code != _WRONG_ARGUMENT and _matches(
        rf"\b(?:let|var)\s+(?:[^;\n]*,\s*)?{name}\s*(?:[=;,]|$)", files
    )
    return is_untyped or _matches(rf"\b{name}(?:\.[\w$]+|\[[^\]\n]*\])\s*=[^=]", files)


def is_allowed_outside_tools(problem: ScriptProblem, files: Mapping[str, str]) -> bool:
    """Returns True if the problem is allowed unless it is about tools."""
    code, message = problem.code, problem.message
    if code in _ALLOWED_OUTSIDE_TOOLS or code == _IMPLICIT_ANY_ELEMENT:
        return True
    if code in _NO_PROPERTY:
        found = _TYPE_OF_OBJECT.search(message)
        return found is not None and (
            _EXTENSIBLE.match(found[1]) is not None
            or _matches(rf"\bclass\s+{re.escape(found[1].removeprefix('typeof '))}(?![\w$])", files)
        )
    if code not in _NOT_ASSIGNABLE:
        return False
    if _TO_NEVER.search(message):
        return True
    # Built-in functions convert their arguments, as in `parseInt(5)`. The types of a script's own functions
    # are checked.
    line = SourceText(problem.source_line)
    callee = _CALLEE.search(line.text[: line.index_at(1, problem.column)])
    return (
        code == _WRONG_ARGUMENT
        and callee is not None
        and not _matches(rf"\b(?:function\*?|class|const|let|var)\s+{re.escape(callee[1])}(?![\w$])", files)
    )


def location(problem: ScriptProblem) -> tuple[str, int, int, int]:
    return problem.file, problem.line, problem.column, problem.code


def _marked_name(problem: ScriptProblem) -> str | None:
    """Returns the marked part of the source line if it is a variable, escaped for a pattern."""
    line = SourceText(problem.source_line)
    start, end = line.index_at(1, problem.column), line.index_at(1, problem.column + problem.length)
    before, marked, after = line.text[:start], line.text[start:end], line.text[end:]
    is_key = _BEFORE_KEY.search(before) is not None and after.lstrip().startswith(":")
    return None if is_key or not _IDENTIFIER.fullmatch(marked) else re.escape(marked)


def _matches(pattern: str, files: Mapping[str, str]) -> bool:
    return any(re.search(pattern, text, re.M) for text in _sources(files))


def _sources(files: Mapping[str, str]) -> Iterable[str]:
    return (text for name, text in files.items() if not name.endswith(".json"))
