"""One check at a time, or all of them."""

from __future__ import annotations

from tests.cli.compliance.executor import SLOW_PACKAGE, Executor

from hutch.cli.compliance.client import Client
from hutch.cli.compliance.examine import SECTIONS, examine, look
from hutch.cli.compliance.progress import Progress
from hutch.cli.compliance.report import Finding, Report
from hutch.cli.compliance.subject import DEFAULT_TOOL, Patience, Subject, Tool

KEY = "the-right-key"
SLEEP = Tool(SLOW_PACKAGE, "0.1.0", "sleep", {})
WAKE = Tool(SLOW_PACKAGE, "0.1.0", "wake", {})
TIMEOUT = "Execution timeout enforced"
UNDER_LOAD = "GET /health answers within a second under load"
ASYNC = "POST /execute-async"
NAMES = [name for checks in SECTIONS.values() for name in checks]


async def finding(
    executor: Executor,
    name: str,
    *,
    key: str | None = KEY,
    slow: Tool | None = None,
    patience: Patience | None = None,
) -> Finding:
    """What one check says."""
    section = next(section for section, checks in SECTIONS.items() if name in checks)
    progress = Progress()
    async with Client(executor.url, key, progress.say) as client:
        return await look(Subject(client, progress, DEFAULT_TOOL, slow, patience), section, name)


async def report(url: str, *, slow: Tool | None = None, patience: Patience | None = None) -> Report:
    """What all of them say."""
    progress = Progress()
    async with Client(url, KEY, progress.say) as client:
        return await examine(Subject(client, progress, DEFAULT_TOOL, slow, patience))
