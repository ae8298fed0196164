"""Which kinds of steps a server runs for whom: no key opens a door by way of a flow that it does not open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hutch.doors.rep import capabilities

if TYPE_CHECKING:
    from hutch.doors.gate import Visitor

SCOPES = {
    "ability.execute": "abilities",
    "code.run": "execbox",
    "mcp.call": "toolscript",
    "tool.execute": "tpmjs",
    "toolscript.run": "toolscript",
}
"""Kinds that are another door's, and which."""


def scopes_for(kinds: Iterable[str]) -> list[str]:
    """What a key has to be for, so that steps of these kinds may be used with it."""
    return ["rep", *sorted({SCOPES[kind] for kind in kinds if kind in SCOPES})]


def kinds_for(visitor: Visitor) -> list[str]:
    """A server runs no programs for anybody, whatever its environment says."""
    known = [*capabilities.own_kinds({}), *capabilities.extensions()]
    return [kind for kind in known if kind not in SCOPES or visitor.may(SCOPES[kind])]
