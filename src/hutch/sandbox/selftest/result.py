"""Result of the self-test: the checks, and the remedy for a failed check."""

from __future__ import annotations

from typing import Literal

import msgspec

from hutch.sandbox.jail.jail import Isolation, bubblewrap_missing, obstacle


class JailCheck(msgspec.Struct, frozen=True):
    name: str
    ok: bool
    detail: str
    required: bool = True
    """True if the isolation is rejected when this check fails."""


class SelfTestResult(msgspec.Struct, frozen=True):
    isolation: Isolation
    seccomp: bool
    cgroup: Literal["v1", "v2"] | None
    checks: list[JailCheck]
    deno: str
    bwrap: str | None

    @property
    def first_failure(self) -> JailCheck | None:
        return next((check for check in self.checks if check.required and not check.ok), None)

    @property
    def is_proven(self) -> bool:
        return self.first_failure is None

    def remedy(self) -> str:
        if self.isolation == "process":
            return "This Deno does not enforce its permissions. Install another with `pip install deno`."
        failure = self.first_failure
        if failure is not None and failure.name == "bubblewrap":
            return bubblewrap_missing()[1]
        reason_and_remedy = obstacle() if failure is not None and failure.name == "starts" else None
        if reason_and_remedy is not None:
            return f"{reason_and_remedy[0]} {reason_and_remedy[1]}"
        return 'Run `hutch doctor` for details, or set `isolation = "process"` to run without containers.'
