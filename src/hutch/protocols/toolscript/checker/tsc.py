"""Pool of native TypeScript compiler processes that check scripts."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from hutch.protocols.toolscript.checker.diagnostics import (
    MAX_SHOWN,
    InvalidScript,
    ScriptProblem,
    cannot_check,
    problem_at,
)
from hutch.protocols.toolscript.checker.source_text import Outline, SourceText
from hutch.protocols.toolscript.checker.toolchain import Compiler
from hutch.protocols.toolscript.checker.tsc_process import (
    MEMORY_BYTES,
    Diagnostic,
    TscFailed,
    TscProcess,
    in_thread_if_large,
)
from hutch.sandbox.jail.jail import Jail
from hutch.sandbox.jail.memory_meter import MemoryMeter
from hutch.settings import MIB

logger = logging.getLogger("hutch.toolscript")

START_SECONDS = 30.0
# More processes than cores would only slow each other down. A process takes about 60 MB.
MAX_PROCESSES = min(2, os.cpu_count() or 1)
MAX_SIGNATURE = 2_000
MAX_PROBLEMS = 1_000
# Codes of "Cannot find namespace", "Namespace has no exported member" and "Cannot use namespace as a type".
_NO_SUCH_TYPE = (2503, 2694, 2709)
_NODE_MODULE = "'\"node:*\"'"
_FROM_NODE = re.compile(r"""from\s*["']node:""")
_MAX_IMPORT = 2_000
_IDENTIFIER = re.compile(r"[\w$]+")

Files = Mapping[str, str]
T = TypeVar("T")


class TscUnavailable(Exception):
    """The native compiler does not run on this machine."""


class TscPool:
    """A pool of compiler processes. Belongs to one event loop."""

    def __init__(self, compiler: Compiler, jail: Jail, seconds: float) -> None:
        self._compiler = compiler
        self._jail = jail
        self._seconds = seconds
        self._meter = MemoryMeter()
        self._idle: list[TscProcess] = []
        self._slots = asyncio.Semaphore(MAX_PROCESSES)
        self._warming = asyncio.Lock()
        self._closed = False

    async def start(self, *, warm: bool = False) -> None:
        """Starts a process. With `warm`, loads Deno's types into it. Raises TscUnavailable."""
        async with self._warming, self._slots:
            process = await self._acquire()
            try:
                async with asyncio.timeout(START_SECONDS):
                    if warm:
                        await process.warm()
            except (TscFailed, TimeoutError) as error:
                await process.close()
                raise TscUnavailable(str(error) or "it cannot read Deno's types") from None
            except BaseException:
                await process.close()
                raise
            if self._closed:
                await process.close()
                raise TscUnavailable("it was closed meanwhile")
            self._idle.append(process)

    async def close(self) -> None:
        """Ends the idle processes at once, and busy processes when they are done."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()
        self._meter.close()

    async def outlines(self, files: Files) -> dict[str, Outline]:
        """Parses files. Raises InvalidScript for syntax errors."""
        return await self._with_process(_parse, files)

    async def check(self, files: Files, declarations: str) -> list[ScriptProblem]:
        """Type-checks the files of a script together. Returns the problems."""
        return await self._with_process(partial(_check, declarations), files)

    async def _with_process(self, work: Callable[[TscProcess, Files], Awaitable[T]], files: Files) -> T:
        """Runs `work` with a process of the pool. Raises TscUnavailable, or InvalidScript if the script is at
        fault.
        """
        async with self._warming:
            # Wait while a process is being warmed up, because starting another process would take longer.
            pass
        async with self._slots:
            for may_retry in (True, False):
                process = await self._acquire()
                is_usable = False
                try:
                    async with asyncio.timeout(self._seconds):
                        done = await work(process, files)
                    is_usable = True
                    return done
                except InvalidScript:
                    is_usable = True
                    raise
                except TimeoutError:
                    raise _cannot_check(files, f"the check takes longer than {self._seconds:g} s.") from None
                except TscFailed as error:
                    logger.warning("the compiler failed while checking a script: %s", error)
                    # Retry once, because the script may not have caused the failure.
                    if not may_retry:
                        break
                finally:
                    if is_usable and not process.is_exhausted and not self._closed:
                        self._idle.append(process)
                    else:
                        await process.close()
        raise _cannot_check(
            files, f"it is nested too deeply, or the check takes more than {MEMORY_BYTES // MIB} MiB."
        )

    async def _acquire(self) -> TscProcess:
        while self._idle:
            process = self._idle.pop()
            if not process.is_exhausted:
                return process
            await process.close()
        return await self._start_process()

    async def _start_process(self) -> TscProcess:
        try:
            async with asyncio.timeout(START_SECONDS):
                return await TscProcess.start(self._compiler, self._jail, self._meter)
        except (TscFailed, OSError, TimeoutError) as error:
            raise TscUnavailable(str(error) or "it does not start") from None


async def _parse(process: TscProcess, files: Files) -> dict[str, Outline]:
    outlines: dict[str, Outline] = {}
    await process.parse(files)
    for name, source in files.items():
        text = SourceText(source)
        if diagnostics := await process.syntax_errors(name):
            raise InvalidScript([_to_problem(process, name, text, diagnostic) for diagnostic in diagnostics])
        tree = await process.tree(name, text)
        # Use a thread for large files, because reading the tree takes half a second for a megabyte of source.
        outlines[name] = await in_thread_if_large(tree.outline, len(source))
    return outlines


async def _check(declarations: str, process: TscProcess, files: Files) -> list[ScriptProblem]:
    problems: list[ScriptProblem] = []
    await process.load(files, declarations)
    for name, source in files.items():
        if name.endswith(".json"):
            continue
        text = SourceText(source)
        # Report only syntax errors if there are any, because type errors would be misleading.
        if diagnostics := await process.syntax_errors(name):
            return [_to_problem(process, name, text, diagnostic) for diagnostic in diagnostics]
        diagnostics = _without_node_types(text, await process.type_errors(name))[:MAX_PROBLEMS]
        tree = await process.tree(name, text) if diagnostics else None
        for number, diagnostic in enumerate(diagnostics):
            call = tree.innermost_call(text.index(diagnostic.pos)) if tree and number < MAX_SHOWN else None
            signature = await _signature(process, name, text, call) if call else None
            problems.append(_to_problem(process, name, text, diagnostic, signature))
    return problems


def _without_node_types(text: SourceText, diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """Removes errors about the types of Node modules, which are declared as `any` (see toolchain.py)."""
    if not any(diagnostic.code in _NO_SUCH_TYPE for diagnostic in diagnostics):
        return diagnostics
    node_names = _names_from_node(text.text)

    def is_known(diagnostic: Diagnostic) -> bool:
        name = text.text[text.index(diagnostic.pos) : text.index(diagnostic.end)]
        return diagnostic.code not in _NO_SUCH_TYPE or (
            name not in node_names and _NODE_MODULE not in diagnostic.text
        )

    return [diagnostic for diagnostic in diagnostics if is_known(diagnostic)]


def _names_from_node(text: str) -> frozenset[str]:
    """Returns all identifiers in imports from Node modules."""
    words: set[str] = set()
    for match in _FROM_NODE.finditer(text):
        before = text[max(0, match.start() - _MAX_IMPORT) : match.start()]
        words.update(_IDENTIFIER.findall(before, max(0, before.rfind("import"))))
    return frozenset(words)


def _cannot_check(files: Files, reason: str) -> InvalidScript:
    return InvalidScript([cannot_check(next(iter(files)), reason)])


def _to_problem(
    process: TscProcess, name: str, text: SourceText, diagnostic: Diagnostic, signature: str | None = None
) -> ScriptProblem:
    message = process.without_paths("\n".join(diagnostic.lines()))
    start, end = text.index(diagnostic.pos), text.index(diagnostic.end)
    return problem_at(name, text, start, end, message, code=diagnostic.code, signature=signature)


async def _signature(
    process: TscProcess, name: str, text: SourceText, call: tuple[int, int, int]
) -> str | None:
    """Returns the signature of the called tool, or None if another function is called."""
    start, end, last = call
    tool_type = await process.tool_type(name, text, last)
    if tool_type is None:
        return None
    # Remove `undefined` from the type of optional properties, because JSON cannot express it.
    tool_type = process.without_paths(tool_type).replace(" | undefined", "")
    signature = " ".join(text.text[start:end].split()) + _declaration_style(tool_type)
    return signature if len(signature) <= MAX_SIGNATURE else f"{signature[:MAX_SIGNATURE]}…"


def _declaration_style(tool_type: str) -> str:
    """Converts a function type to declaration syntax: `(a: A): B` instead of `(a: A) => B`."""
    depth = 0
    for index, char in enumerate(tool_type):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0 and tool_type.startswith(") => ", index):
            return f"{tool_type[: index + 1]}: {tool_type[index + 5 :]}"
        if depth == 0:
            break
    return f": {tool_type}"
