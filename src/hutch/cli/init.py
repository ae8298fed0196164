"""`hutch init`: binds the project in the current directory to a runtime."""

from __future__ import annotations

import sys
from pathlib import Path

from hutch.doors.rep import project


def init(engine: str, executor: str | None, language: str | None, plugins_language: str | None) -> int:
    bound = project.bind(
        Path(),
        engine,
        language=language,
        plugins_language=plugins_language,
        executor_path=executor,
    )
    print(f"{bound.file}: the runtime is {bound.engine} ({bound.language})")
    if bound.executor_path is None and not bound.is_ours:
        _warn(f"{bound.engine} is none of ours: say with --executor which program it is.")
    elif bound.executor is not None and len(bound.executor.parts) > 1 and not bound.executor.exists():
        _warn(f"there is no {bound.executor} yet.")
    mismatch = bound.mismatch()
    if mismatch is not None:
        _warn(mismatch)
    return 0


def _warn(text: str) -> None:
    print(f"hutch: warning: {text}", file=sys.stderr)
