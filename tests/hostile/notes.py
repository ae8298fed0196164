"""A tool that writes down what it was called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Notes:
    """What was taken down."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def tool(self) -> Callable[..., Any]:
        async def note(value: Any = None, /) -> str:
            self.taken.append(value)
            return "noted"

        return note
