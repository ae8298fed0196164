"""Checkers for tests, and declarations of a few tools."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.sandbox import jails

from hutch.protocols.toolscript.checker.checker import Checker, Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript, ScriptProblem
from hutch.protocols.toolscript.checker.rewrite import PreparedScript
from hutch.sandbox.jail.jail import Jail
from hutch.settings import load_settings

DECLARATIONS = """
export interface Github {
  /** Creates an issue. */
  createIssue(
    args: { title: string; body?: string; labels?: ("bug" | "idea")[] },
  ): Promise<{ number: number }>;
  listIssues(args?: { state?: "open" | "closed" }): Promise<{ number: number; title: string }[]>;
  search(args: { text: string }): Promise<any>;
}
export declare const tools: { github: Github };
export declare class ToolError extends Error {}
"""
IMPORT = 'import { tools } from "toolscript";\n'


@contextlib.asynccontextmanager
async def running_checker(
    jail: Jail | None = None, seconds: float = 20.0, **settings: Any
) -> AsyncIterator[Checker]:
    """Yields a checker that uses the native compiler, which is installed once in the home of the test
    session.
    """
    checker = Checker(load_settings(settings), jail or jails.container(), seconds=seconds)
    try:
        yield checker
    finally:
        await checker.close()


@contextlib.asynccontextmanager
async def deno_checker(home: Path) -> AsyncIterator[Checker]:
    """A checker without the native compiler."""
    async with running_checker(home=str(home), offline=True) as checker:
        yield checker


async def prepare(
    checker: Checker, text: str, check: bool = True, strict: bool = False, **script: Any
) -> PreparedScript:
    return await checker.prepare(Script(text, **script), DECLARATIONS if check else None, strict=strict)


async def find_problems(checker: Checker, text: str, **script: Any) -> list[ScriptProblem]:
    try:
        await prepare(checker, text, **script)
    except InvalidScript as refused:
        return refused.problems
    return []
