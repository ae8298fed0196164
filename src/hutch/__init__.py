"""Hutch runs other people's code for AI agents, safely and at once."""

from hutch._version import __version__
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
