"""Names that a guest can write: safe tool names from any names, and which namespaces a provider may have."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hutch.errors import InvalidTool

IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

# Of strict and module code. As properties (`tools.delete`) all of these would do; but a guest may also
# destructure (`const { delete_ } = tools`), and the declarations show every tool as a function.
_WORDS = """
    arguments await break case catch class const continue debugger default delete do else enum eval export
    extends false finally for function if implements import in instanceof interface let new null package
    private protected public return static super switch this throw true try typeof var void while with yield
"""
RESERVED = frozenset(_WORDS.split())

# No reserved words, but globals that nothing can be bound to.
_UNBINDABLE = frozenset({"Infinity", "NaN", "globalThis", "undefined"})

_OUTSIDE = re.compile(r"[^A-Za-z0-9_$]+")


def is_identifier(text: str) -> bool:
    """Whether `text` can stand unquoted as a property or a declared name; reserved words count."""
    return IDENTIFIER.fullmatch(text) is not None


def safe_name(original: str) -> str:
    """An identifier that looks like `original`; different originals may give the same."""
    safe = _OUTSIDE.sub("_", original.strip()).strip("_") or "_"
    if safe[0].isdigit():
        safe = f"_{safe}"
    return f"{safe}_" if safe in RESERVED else safe


def safe_names(originals: Iterable[str]) -> dict[str, str]:
    """Safe name to original name, in order, every safe name once: `x`, `x__2`, `x__3`, …"""
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


def check_namespace(name: object) -> None:
    """Raises InvalidTool unless `name` can be a guest's global."""
    if isinstance(name, str) and is_identifier(name) and name not in RESERVED and name not in _UNBINDABLE:
        return
    shown = name if isinstance(name, str) and name and name.isprintable() else repr(name)
    raise InvalidTool(
        f"Invalid provider namespace: {shown[:100]}.",
        remedy="Expected a JavaScript identifier (A-Z, a-z, 0-9, _, $; no digit first), not a reserved word.",
    )
