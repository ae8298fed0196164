"""The outline of a script: its statements, what it imports, and whether it returns outside of functions."""

from __future__ import annotations

from typing import Literal

import msgspec

StatementKind = Literal["import", "export", "other"]


class Statement(msgspec.Struct, frozen=True):
    """A statement at the top level, without the comments before it."""

    kind: StatementKind
    start: int
    end: int


class Specifier(msgspec.Struct, frozen=True):
    """What a file says that it imports, and where it says so."""

    text: str
    start: int
    end: int
    dynamic: bool
    """Whether by `import(…)`, which is only looked for once it is reached."""


class Outline(msgspec.Struct, frozen=True):
    """What has to be known of a file in order to run it."""

    statements: tuple[Statement, ...]
    specifiers: tuple[Specifier, ...]
    returns: tuple[int, ...]
    """Where a `return` stands that is in no function."""
