"""Checks, and exceptions for their outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Literal, NamedTuple, TypeVar

Outcome = Literal["passed", "failed", "not_tested", "not_supported"]


class CheckFailed(Exception):
    """Raised if the target violates the check. The text contains the details."""


class FeatureMissing(CheckFailed):
    """Raised if the target lacks the feature that the check is named after."""


class NotTested(Exception):
    """Raised if the check could not run. The text contains the reason and a remedy."""


class NotSupported(Exception):
    """Raised if the target does not offer an optional feature."""

    def __init__(self, reason: str = "not supported by this executor") -> None:
        super().__init__(reason)


class Target:
    """An implementation under test."""

    @property
    def secret(self) -> str | None:
        """Secret that is replaced by asterisks in the report. None if there is none."""
        return None

    async def recover(self) -> None:
        """Restores a usable state. This is called after a failed check."""


TargetT = TypeVar("TargetT", bound=Target)


class Check(NamedTuple, Generic[TargetT]):
    """A named check. `run` returns a measurement or None, or raises one of the exceptions above."""

    name: str
    run: Callable[[TargetT], Awaitable[str | None]]
    section: str = ""
    """Section of the specification."""
    required: bool = True
    """False if the specification only recommends the feature."""
