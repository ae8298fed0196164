"""`hutch doctor`: what this machine gives, and what to do about the rest."""

from __future__ import annotations

from hutch import settings as settings_module
from hutch.sandbox.doctor import examine


def doctor(*, json: bool) -> int:
    """The command's exit code: 0 when guests can run here as the settings want it."""
    report = examine(settings_module.load())
    if json:
        print(report.json())
    else:
        print(*report.lines(), sep="\n")
    return 0 if report.healthy else 1
