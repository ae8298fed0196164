"""What the self-test found about a jail, and what to do where it is too little."""

from __future__ import annotations

from typing import Literal

import msgspec

from hutch.sandbox import jail
from hutch.sandbox.jail import Isolation


class Check(msgspec.Struct, frozen=True):
    """One promise, whether it was kept, and what was seen."""

    name: str
    ok: bool
    detail: str
    required: bool = True
    """Whether the isolation is not worth its name without."""


class Verdict(msgspec.Struct, frozen=True):
    """What was proven, and by which checks."""

    isolation: Isolation
    seccomp: bool
    cgroup: Literal["v1", "v2"] | None
    checks: list[Check]
    deno: str
    bwrap: str | None

    @property
    def failure(self) -> Check | None:
        """The first check that failed and that the isolation cannot do without."""
        return next((check for check in self.checks if check.required and not check.ok), None)

    @property
    def proven(self) -> bool:
        return self.failure is None

    def remedy(self) -> str:
        """What to do when it is not proven."""
        if self.isolation == "process":
            return "This Deno does not keep to its own permissions: install another with `pip install deno`."
        if self.failure is not None and self.failure.name == "bubblewrap":
            return jail.no_bubblewrap()[1]
        obstacle = jail.obstacle() if self.failure is not None and self.failure.name == "starts" else None
        if obstacle is not None:
            return f"{obstacle[0]} {obstacle[1]}"
        return '`hutch doctor` tells more; `isolation = "process"` does without containers.'
