"""Hutch runs other people's code for AI agents, safely and at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hutch._version import __version__

if TYPE_CHECKING:
    from hutch.api import Hutch, connect, run_sync
    from hutch.errors import (
        Busy,
        HutchError,
        InvalidExecution,
        InvalidTool,
        SandboxUnavailable,
        SettingError,
        ToolError,
    )
    from hutch.kernel import Result
    from hutch.session.functions import tool
    from hutch.session.messages import WireError
    from hutch.session.providers import Provider
    from hutch.session.tools import Tool, ToolContext

__all__ = [
    "Busy",
    "Hutch",
    "HutchError",
    "InvalidExecution",
    "InvalidTool",
    "Provider",
    "Result",
    "SandboxUnavailable",
    "SettingError",
    "Tool",
    "ToolContext",
    "ToolError",
    "WireError",
    "__version__",
    "connect",
    "run_sync",
    "tool",
]

_FROM = {
    "hutch.api": ("Hutch", "connect", "run_sync"),
    "hutch.errors": (
        "Busy",
        "HutchError",
        "InvalidExecution",
        "InvalidTool",
        "SandboxUnavailable",
        "SettingError",
        "ToolError",
    ),
    "hutch.kernel": ("Result",),
    "hutch.session.functions": ("tool",),
    "hutch.session.messages": ("WireError",),
    "hutch.session.providers": ("Provider",),
    "hutch.session.tools": ("Tool", "ToolContext"),
}


def __getattr__(name: str) -> Any:
    """Brought in when it is first used: commands that need none of it start in half the time."""
    from importlib import import_module

    for module, names in _FROM.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module 'hutch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
