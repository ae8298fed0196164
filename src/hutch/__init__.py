"""Execution service for AI agents: runs untrusted code in a sandbox with typed access to tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hutch._version import __version__

if TYPE_CHECKING:
    from hutch.api.hutch import Hutch
    from hutch.api.remote import connect
    from hutch.api.stateful_session import Session
    from hutch.api.sync import run_sync
    from hutch.errors import (
        Busy,
        ExecutionError,
        HutchError,
        InvalidExecution,
        InvalidTool,
        ResumeError,
        SandboxUnavailable,
        SessionError,
        SettingError,
        Suspend,
        ToolError,
    )
    from hutch.kernel.sessions.sessions import SessionInfo, Variable
    from hutch.session.events.live_run import Run
    from hutch.session.files.model import File
    from hutch.session.run import (
        CallRecord,
        PendingCall,
        Result,
        RunEnded,
        RunEvent,
        RunLog,
        RunQueued,
        RunStarted,
        RunSuspended,
        ToolCallEnded,
        ToolCallStarted,
        ToolProgress,
    )
    from hutch.session.tools.functions import tool
    from hutch.session.tools.provider import Provider
    from hutch.session.tools.tool import Deferred, Tool, ToolContext

__all__ = [
    "Busy",
    "CallRecord",
    "Deferred",
    "ExecutionError",
    "File",
    "Hutch",
    "HutchError",
    "InvalidExecution",
    "InvalidTool",
    "PendingCall",
    "Provider",
    "Result",
    "ResumeError",
    "Run",
    "RunEnded",
    "RunEvent",
    "RunLog",
    "RunQueued",
    "RunStarted",
    "RunSuspended",
    "SandboxUnavailable",
    "Session",
    "SessionError",
    "SessionInfo",
    "SettingError",
    "Suspend",
    "Tool",
    "ToolCallEnded",
    "ToolCallStarted",
    "ToolContext",
    "ToolError",
    "ToolProgress",
    "Variable",
    "__version__",
    "connect",
    "run_sync",
    "tool",
]

_MODULES = {
    "hutch.api.hutch": ("Hutch",),
    "hutch.api.remote": ("connect",),
    "hutch.api.stateful_session": ("Session",),
    "hutch.api.sync": ("run_sync",),
    "hutch.errors": (
        "Busy",
        "ExecutionError",
        "HutchError",
        "InvalidExecution",
        "InvalidTool",
        "ResumeError",
        "SandboxUnavailable",
        "SessionError",
        "SettingError",
        "Suspend",
        "ToolError",
    ),
    "hutch.kernel.sessions.sessions": ("SessionInfo", "Variable"),
    "hutch.session.tools.functions": ("tool",),
    "hutch.session.files.model": ("File",),
    "hutch.session.events.live_run": ("Run",),
    "hutch.session.run": (
        "CallRecord",
        "PendingCall",
        "Result",
        "RunEnded",
        "RunEvent",
        "RunLog",
        "RunQueued",
        "RunStarted",
        "RunSuspended",
        "ToolCallEnded",
        "ToolCallStarted",
        "ToolProgress",
    ),
    "hutch.session.tools.provider": ("Provider",),
    "hutch.session.tools.tool": ("Deferred", "Tool", "ToolContext"),
}


def __getattr__(name: str) -> Any:
    """Imports an exported name on first use. Commands that use no exported name start in half the time."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module 'hutch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
