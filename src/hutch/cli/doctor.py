"""`hutch doctor`: what this machine gives, and what to do about the rest."""

from __future__ import annotations

import msgspec

from hutch import settings as settings_module
from hutch.sandbox.doctor import examine


def doctor(*, json: bool) -> int:
    """The command's exit code: 0 when code can be run here, however weakly isolated."""
    report = examine(settings_module.load())
    if json:
        print(msgspec.json.encode(report).decode())
    else:
        print(report.text())
    return 0 if report.usable else 1
