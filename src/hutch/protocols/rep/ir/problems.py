"""Problems of a flow, its inputs or its manifest, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hutch.errors import HutchError
from hutch.problems import Problem, first_problems
from hutch.protocols.rep.jsonrpc import INVALID_IR, UNSUPPORTED_VERSION

VERSION = "1.0.0"
"""The supported version of Flow IR."""


class InvalidFlow(HutchError):
    """The flow is invalid. None of its steps has run."""

    code = "invalid_flow"

    def __init__(self, problems: Iterable[Problem], *, received_version: str | None = None) -> None:
        self.problems = first_problems(problems)
        self.received_version = received_version
        """The flow's version if it is not supported. The version is then the only reported problem."""
        super().__init__(format_problems(self.problems))

    @property
    def rep_code(self) -> int:
        """Error code of REP (section 6)."""
        return INVALID_IR if self.received_version is None else UNSUPPORTED_VERSION

    @property
    def details(self) -> dict[str, object]:
        """Value for REP's `data.details`."""
        if self.received_version is not None:
            return {"expected": VERSION, "received": self.received_version}
        return {"problems": list_problems(self.problems)}


def list_problems(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Returns the problems as JSON."""
    return [msgspec.to_builtins(problem) for problem in problems]


def format_problems(problems: Iterable[Problem]) -> str:
    """Formats one problem per line."""
    return "\n".join(map(str, problems))
