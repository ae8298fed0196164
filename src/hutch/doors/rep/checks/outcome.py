"""A check and how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from hutch.doors.rep.checks.subject import Subject

Outcome = Literal["passed", "failed", "not_tested"]


class Failed(Exception):
    """The runtime does not do what the check asks for; the text says what it did."""


class NotTested(Exception):
    """It could not be tried; the text says why, and what would help."""


class Check(NamedTuple):
    """One question to a runtime."""

    name: str
    section: str
    """Of the specification."""
    required: bool
    """By the specification; what is not is good to have."""
    ask: Callable[[Subject], Awaitable[None]]
    """Raises Failed, NotTested."""
