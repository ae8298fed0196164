"""Checkers for the tests, and declarations of a few tools to check scripts against."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.sandbox import jails

from hutch.doors.toolscript.check import Checker, Script
from hutch.doors.toolscript.problems import Problem, ScriptRefused
from hutch.doors.toolscript.source import Source
from hutch.sandbox.jail import Jail
from hutch.settings import load

DECLARATIONS = """
export interface Github {
  /** Creates an issue. */
  createIssue(
    args: { title: string; body?: string; labels?: ("bug" | "idea")[] },
  ): Promise<{ number: number }>;
  listIssues(args?: { state?: "open" | "closed" }): Promise<{ number: number; title: string }[]>;
}
export declare const tools: { github: Github };
export declare class ToolError extends Error {}
"""
IMPORT = 'import { tools } from "toolscript";\n'


@contextlib.asynccontextmanager
async def checking(
    jail: Jail | None = None, seconds: float = 20.0, **settings: Any
) -> AsyncIterator[Checker]:
    """A checker with the compiler of the session's home."""
    checker = Checker(load(settings), jail or jails.container(), seconds=seconds)
    try:
        yield checker
    finally:
        await checker.close()


@contextlib.asynccontextmanager
async def by_deno(home: Path) -> AsyncIterator[Checker]:
    """One that cannot have the compiler."""
    async with checking(home=str(home), offline=True) as checker:
        yield checker


async def prepared(checker: Checker, text: str, check: bool = True, **script: Any) -> Source:
    return await checker.prepare(Script(text, **script), DECLARATIONS if check else None)


async def problems(checker: Checker, text: str, **script: Any) -> list[Problem]:
    try:
        await prepared(checker, text, **script)
    except ScriptRefused as refused:
        return refused.problems
    return []
