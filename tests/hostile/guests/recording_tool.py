"""A tool that records its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RecordingTool:
    """Records the argument of each call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def tool(self) -> Callable[..., Any]:
        async def note(value: Any = None, /) -> str:
            self.calls.append(value)
            return "noted"

        return note
