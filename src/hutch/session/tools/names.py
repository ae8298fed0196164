"""Safe tool names for guests, and validation of provider namespaces."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hutch.errors import InvalidTool

IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

# Reserved words of strict and module code. A tool could have such a name if it were only used as a property
# (`tools.delete`). But a guest may also destructure (`const { delete_ } = tools`), and the declarations show
# every tool as a function.
_RESERVED_WORDS = """
    arguments await break case catch class const continue debugger default delete do else enum eval export
    extends false finally for function if implements import in instanceof interface let new null package
    private protected public return static super switch this throw true try typeof var void while with yield
"""
RESERVED_WORDS = frozenset(_RESERVED_WORDS.split())

# Globals that are not reserved words but cannot be rebound.
_UNBINDABLE = frozenset({"Infinity", "NaN", "globalThis", "undefined"})

_INVALID_CHARS = re.compile(r"[^A-Za-z0-9_$]+")


def is_identifier(text: str) -> bool:
    """Returns True if `text` can be an unquoted property or a declared name. Reserved words are accepted."""
    return IDENTIFIER.fullmatch(text) is not None


def safe_name(original: str) -> str:
    """Returns an identifier similar to `original`. Different originals may give the same identifier."""
    safe = _INVALID_CHARS.sub("_", original.strip()).strip("_") or "_"
    if safe[0].isdigit():
        safe = f"_{safe}"
    return f"{safe}_" if safe in RESERVED_WORDS else safe


def safe_names(originals: Iterable[str]) -> dict[str, str]:
    """Maps unique safe names to original names, in order. Equal safe names get a number: `x`, `x__2`, `x__3`,
    …
    """
    names: dict[str, str] = {}
    last: dict[str, int] = {}
    for original in originals:
        base = safe = safe_name(original)
        number = last.get(base, 1)
        while safe in names:
            number += 1
            safe = f"{base}__{number}"
        last[base] = number
        names[safe] = original
    return names


def letters(name: str) -> str:
    """Returns the letters and digits of a name in lower case. They are the same in all spellings of a name:
    the original (`my-server`), the name in scripts, and a qualified name (`my-server__create_issue`).
    """
    return "".join(filter(str.isalnum, name)).lower()


def is_bindable(name: object) -> bool:
    """Returns True if `name` can be a global variable of a guest."""
    return (
        isinstance(name, str)
        and is_identifier(name)
        and name not in RESERVED_WORDS
        and name not in _UNBINDABLE
    )


def check_namespace(name: object) -> None:
    """Raises InvalidTool unless `name` can be a global of a guest."""
    if is_bindable(name):
        return
    shown = name if isinstance(name, str) and name and name.isprintable() else repr(name)
    raise InvalidTool(
        f"Invalid provider namespace: {shown[:100]}.",
        remedy="Expected a JavaScript identifier (A-Z, a-z, 0-9, _, $; no digit first), not a reserved word.",
    )
