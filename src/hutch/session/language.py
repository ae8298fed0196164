"""Recognises code in a language that no engine runs, and code in a Markdown fence."""

from __future__ import annotations

import re

PYTHON_HINT = "this looks like Python; code has to be JavaScript or TypeScript"

_FENCED = re.compile(r"\A\s*```[^\n`]*\n(.*?)\n?```\s*\Z", re.S)
# Maximum number of lines to examine, and maximum length of a line. Matching longer lines would take too long.
_MAX_LINES = 100
_MAX_LINE_CHARS = 200
# Lines that Python programs contain and JavaScript programs do not.
_PYTHON_LINE = re.compile(
    r"\s*(?:"
    r"(?:async )?def \w+\(.*|class \w+(?:\(.*\))?:|from [\w.]+ import \w.*|import \w[\w.]*(?: as \w+)?"
    r"|(?:async )?for [\w, ()]+ in .+:|while [^({][^{]*:|(?:el)?if [^({][^{]*:|(?:else|try|finally):"
    r"|except(?: .*)?:|(?:async )?with .+:|\w+ = \[.+ for \w+ in .+\]|\w+ = lambda .*|print\(.*\)"
    r")\s*(?:#.*)?"
)
_PYTHON_NAMES = frozenset({"print", "len", "range", "str", "dict", "True", "False", "None", "self"})
_UNKNOWN_NAME = re.compile(r"^(?:Cannot find name )?'?(\w+)'?(?: is not defined)?[.;:]?")


def python_hint(code: str, problem: str = "") -> str | None:
    """Returns PYTHON_HINT if code that JavaScript refuses looks like Python, otherwise None.

    `problem` is the message of JavaScript or TypeScript. If this message reports an unknown name, the code
    counts as Python only if that name is in _PYTHON_NAMES.
    """
    unknown = _UNKNOWN_NAME.match(problem)
    if unknown and unknown[0] != unknown[1] and unknown[1] not in _PYTHON_NAMES:
        return None
    lines = code[: _MAX_LINES * _MAX_LINE_CHARS].split("\n", _MAX_LINES)[:_MAX_LINES]
    short = (line for line in lines if len(line) <= _MAX_LINE_CHARS)
    return PYTHON_HINT if any(_PYTHON_LINE.fullmatch(line) for line in short) else None


def without_fence(code: str) -> str:
    """Removes the Markdown fence around code, without changing line numbers. Returns other code unchanged."""
    fenced = _FENCED.match(code) if code.lstrip().startswith("```") else None
    return code if fenced is None else "\n" * code.count("\n", 0, fenced.start(1)) + fenced[1]
