"""What `hutch flow run` exits with: one number for each class of error (REP, sections 6 and 11)."""

from __future__ import annotations

OK = 0
STEP_FAILED = 1
INVALID_FLOW = 2
"""Schema or graph; nothing was started."""
REFUSED = 3
"""Validation: by the runtime, of its capabilities, or of the inputs."""
BROKEN = 4
"""The runtime, its transport, or the time that there is for it all."""
INTERRUPTED = 130

_CLASSES = {1: REFUSED, 2: STEP_FAILED, 3: BROKEN}


def exit_for(code: int) -> int:
    """By the class of an error's code. What has none is nothing that the protocol knows."""
    return _CLASSES.get(code // 1000, BROKEN)
