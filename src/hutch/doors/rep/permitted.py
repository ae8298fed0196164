"""Which kinds of steps a server runs for whom: no key opens a door by way of a flow that it does not open."""

from __future__ import annotations

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


def kinds_for(visitor: Visitor) -> list[str]:
    """A server runs no programs for anybody, whatever its environment says."""
    known = [*capabilities.own_kinds({}), *capabilities.extensions()]
    return [kind for kind in known if kind not in SCOPES or visitor.may(SCOPES[kind])]
