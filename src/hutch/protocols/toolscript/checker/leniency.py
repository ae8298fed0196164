"""Decides which problems of ordinary JavaScript a lenient check allows.

Names, arguments and declared results of tools are checked strictly. Elsewhere many problems are allowed,
because TypeScript also rejects correct programs such as `const counts = {}; counts[key] = 1`. A problem is
about tools if it disappears when all tools have the type `any`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from hutch.protocols.toolscript.checker.diagnostics import ScriptProblem
from hutch.protocols.toolscript.checker.source_text import SourceText

ANY_TOOLS = """\
export declare const tools: any;
export declare class ToolError extends Error { server: string; tool: string; details: any }
"""

# Codes of problems with an implicit `any`. Codes 7027 to 7030 are left out, because they are about other
# problems, such as unreachable code.
_IMPLICIT_ANY = frozenset({*range(7005, 7027), *range(7031, 7058), 2683})
_UNKNOWN_VALUE = frozenset({2571, 18046})
_POSSIBLY_NULL = frozenset({2531, 2532, 2533, 2721, 2722, 2723, 18047, 18048, 18049})
_UNINITIALIZED_PROPERTY = 2564
_ALWAYS_ALLOWED = _IMPLICIT_ANY | _UNKNOWN_VALUE | _POSSIBLY_NULL | {_UNINITIALIZED_PROPERTY}
_IMPLICIT_ANY_ELEMENT = 7053
_WRONG_ARGUMENT = 2345
# Codes for a value that has another type than expected, or lacks properties.
_NOT_ASSIGNABLE = frozenset({2322, 2739, 2740, 2741, _WRONG_ARGUMENT})
_NO_PROPERTY = frozenset({2339, 2551})
# Codes for a wrong number of arguments, no matching overload, or an operand that is not a number, as in `date
# - date`.
_ALLOWED_OUTSIDE_TOOLS = frozenset({2362, 2363, 2365, 2554, 2555, 2556, 2769})

_OF_UNKNOWN = re.compile(
    r"(?:Argument of type|Type) 'unknown' is not assignable|does not exist on type 'unknown'"
)
# Matches a string variable where an enumeration is expected. The type of `state` in `let state = "open"` is
# `string`, not `"open"`.
_WIDENED_STRING = re.compile(r"""Type 'string' is not assignable to type '"[^\n]*\Z""")
_TO_NEVER = re.compile(r"to (?:parameter of )?type 'never'")
_TYPE_OF_OBJECT = re.compile(r"does not exist on type '(.*?)'(?:\.|$)", re.M)
# Types of values to which a program may add properties: object literals, functions, errors, and elements of
# empty lists (`never`).
_EXTENSIBLE = re.compile(r"[{(]|never$|object$|\w*Error$")
_EMPTY_OBJECT = "on type '{}'"
_NAME = r"[A-Za-z_$][\w$]*"
_IDENTIFIER = re.compile(_NAME)
_OWN_CLASS = re.compile(rf"(?:typeof )?({_NAME})(?:<.*>)?")
# Matches the source before a property key. The compiler marks the key, as in `{ state: "opne" }`, although
# the value is wrong.
_BEFORE_KEY = re.compile(r"(?:^|[{,])\s*$")
_CALLEE = re.compile(rf"({_NAME})\s*\([^()]*$")
# Number of characters before and after the marked part that are considered.
_CONTEXT_CHARS = 200

# Find all names in one pass per pattern. A search per problem would be slow, because a script can have a
# thousand problems and be a single long line.
_CLASS = re.compile(rf"\bclass\s+({_NAME})")
_DECLARED = re.compile(rf"\b(?:function\*?|class|const|let|var)\s+({_NAME})")
# Matches the variables in `let a = 1, b;`, up to the end of the statement or of the line. If the line ends
# with a comma, also matches the next line.
_DECLARATIONS = re.compile(r"\b(?:let|var)\s+((?:[^;\n]|(?<=,)\n)*)")
_UNTYPED = re.compile(rf"(?:^|,|\b(?:let|var)\s)\s*({_NAME})\s*(?=[=;,]|$)")
# Matches an object that gets its properties later, as in `const args = {}; args.path = "x"`.
_EXTENDED = re.compile(rf"(?<![\w$])({_NAME})(?:\.[\w$]+|\[[^\]\n]{{0,200}}\])\s*=[^=]")


class LenientCheck:
    """Decides about the problems of one script. `files` are its files by name."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._sources = [text for name, text in files.items() if not name.endswith(".json")]
        self._lines: dict[str, SourceText] = {}

    @cached_property
    def _classes(self) -> frozenset[str]:
        return self._names(_CLASS)

    @cached_property
    def _declared(self) -> frozenset[str]:
        return self._names(_DECLARED)

    @cached_property
    def _extended(self) -> frozenset[str]:
        return self._names(_EXTENDED)

    @cached_property
    def _untyped(self) -> frozenset[str]:
        declarations = (found[1] for text in self._sources for found in _DECLARATIONS.finditer(text))
        return frozenset(name for text in declarations for name in _UNTYPED.findall(text))

    def _names(self, pattern: re.Pattern[str]) -> frozenset[str]:
        return frozenset(name for text in self._sources for name in pattern.findall(text))

    def is_allowed(self, problem: ScriptProblem) -> bool:
        """Returns True if the problem is allowed everywhere, even where the script uses tools."""
        code, message = problem.code, problem.message
        if code == _IMPLICIT_ANY_ELEMENT:
            # Report literal keys, because a literal key may be the misspelt name of a tool.
            return "Property '" not in message
        if code in _ALWAYS_ALLOWED or _OF_UNKNOWN.search(message) or _WIDENED_STRING.search(message):
            return True
        if code in _NO_PROPERTY and _EMPTY_OBJECT in message:
            # Report the problem if the object is `tools`, which has the type `{}` if there are no tools.
            return not self._around(problem)[0].endswith("tools.")
        name = self._marked_name(problem) if code in _NOT_ASSIGNABLE else None
        if name is None:
            return False
        return (code != _WRONG_ARGUMENT and name in self._untyped) or name in self._extended

    def is_allowed_outside_tools(self, problem: ScriptProblem) -> bool:
        """Returns True if the problem is allowed unless it is about tools."""
        code, message = problem.code, problem.message
        if code in _ALLOWED_OUTSIDE_TOOLS or code == _IMPLICIT_ANY_ELEMENT:
            return True
        if code in _NO_PROPERTY:
            found = _TYPE_OF_OBJECT.search(message)
            if found is None:
                return False
            own_class = _OWN_CLASS.fullmatch(found[1])
            return _EXTENSIBLE.match(found[1]) is not None or (
                own_class is not None and own_class[1] in self._classes
            )
        if code in _NOT_ASSIGNABLE and _TO_NEVER.search(message):
            return True
        if code != _WRONG_ARGUMENT:
            return False
        # Allow the problem for built-in functions, which convert their arguments, as in `parseInt(5)`. Report
        # it for the script's own functions.
        callee = _CALLEE.search(self._around(problem)[0])
        return callee is not None and callee[1] not in self._declared

    def _marked_name(self, problem: ScriptProblem) -> str | None:
        """Returns the marked part of the source line if it is a variable."""
        before, marked, after = self._around(problem)
        is_key = _BEFORE_KEY.search(before) is not None and after.lstrip().startswith(":")
        return None if is_key or not _IDENTIFIER.fullmatch(marked) else marked

    def _around(self, problem: ScriptProblem) -> tuple[str, str, str]:
        """Returns the marked part of the source line, with the text before and after it."""
        line = self._lines.get(problem.source_line)
        if line is None:
            line = self._lines[problem.source_line] = SourceText(problem.source_line)
        start, end = line.index_at(1, problem.column), line.index_at(1, problem.column + problem.length)
        before = line.text[max(0, start - _CONTEXT_CHARS) : start]
        return before, line.text[start:end], line.text[end : end + _CONTEXT_CHARS]


def location(problem: ScriptProblem) -> tuple[str, int, int, int]:
    return problem.file, problem.line, problem.column, problem.code
