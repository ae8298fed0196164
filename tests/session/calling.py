"""Calls tools as a guest would, and defines types and tools for the tests."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
from typing import Any

import anyio
import pytest

from hutch.errors import ToolError
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import ToolContext


@dataclasses.dataclass
class Place:
    """A point on Earth."""

    lat: float
    lon: float = 0.0


class Color(enum.Enum):
    RED = "red"


async def add(a: int, b: int = 2) -> int:
    """Adds two numbers.

    Args:
        a: The first.
    """
    return a + b


def context(**changes: Any) -> ToolContext:
    known: dict[str, Any] = {
        "run_id": "r1",
        "provider": "tools",
        "tool": "t",
        "deadline": 1.0,
        "cancelled": anyio.Event(),
    }
    return ToolContext(**(known | changes))


def call(fn: Any, value: Any = None, name: str | None = None, *, given: ToolContext | None = None) -> Any:
    """Calls the only tool of a provider and returns its result."""
    provider = fn if isinstance(fn, Provider) else Provider.of(fn)
    (only,) = provider.tools
    return json.loads(asyncio.run(provider.dispatch(name or only, value, given or context())))


def failure(fn: Any, value: Any = None, name: str | None = None) -> tuple[str, str]:
    with pytest.raises(ToolError) as caught:
        call(fn, value, name)
    return caught.value.tool_code, caught.value.message
