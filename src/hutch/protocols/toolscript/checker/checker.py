"""Prepares toolscripts: reads their files, checks their types and makes them runnable."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from hutch.errors import PackageNotFound
from hutch.protocols.toolscript.checker.deno import DenoBackend
from hutch.protocols.toolscript.checker.diagnostics import (
    InvalidScript,
    ScriptProblem,
    cannot_check,
    problem_at,
)
from hutch.protocols.toolscript.checker.explanations import explain, explain_language
from hutch.protocols.toolscript.checker.imports import read_files
from hutch.protocols.toolscript.checker.leniency import (
    ANY_TOOLS,
    LenientCheck,
    location,
)
from hutch.protocols.toolscript.checker.rewrite import PreparedScript, may_be_function, may_return, rewrite
from hutch.protocols.toolscript.checker.source_text import Outline
from hutch.protocols.toolscript.checker.toolchain import COMPILER_VERSION, OnMessage, Toolchain
from hutch.protocols.toolscript.checker.tsc import TscPool, TscUnavailable
from hutch.sandbox.jail.jail import Jail
from hutch.session.language import without_fence
from hutch.settings import Settings

logger = logging.getLogger("hutch.toolscript")

SCRIPT = "script.ts"
"""Name of a script that was not read from a file."""
CHECK_SECONDS = 20.0
# Delay before the native compiler is tried again after a failure.
RETRY_SECONDS = 300.0
_MAX_CACHED = 256
_MAX_CACHED_CHARS = 256 * 1024


class Script(msgspec.Struct, frozen=True):
    """The source of a script, and of the files that it imports, by their paths relative to the script."""

    text: str
    name: str = SCRIPT
    files: dict[str, str] = {}


class CheckBackend(Protocol):
    """Parses and type-checks scripts. Implemented by the native compiler and, as a fallback, by Deno."""

    async def outlines(self, files: Mapping[str, str]) -> dict[str, Outline]: ...
    async def check(self, files: Mapping[str, str], declarations: str) -> list[ScriptProblem]: ...


class Checker:
    """Prepares scripts. Belongs to one event loop. Compiler processes start when they are first needed."""

    def __init__(
        self,
        settings: Settings,
        jail: Jail,
        *,
        on_message: OnMessage | None = None,
        seconds: float = CHECK_SECONDS,
    ) -> None:
        """`on_message` receives the progress of the compiler's download, and one warning if the compiler is
        not available.
        """
        self._toolchain = Toolchain(settings)
        self._jail = jail
        self._on_message = on_message
        self._seconds = seconds
        self._tsc: TscPool | None = None
        self._fallback = DenoBackend(jail, self._toolchain)
        self._backend_lock = asyncio.Lock()
        self._retry_at = 0.0
        self._prepared: OrderedDict[bytes, PreparedScript] = OrderedDict()

    async def start(self) -> None:
        """Starts a compiler process, so that the first script does not have to wait for the start."""
        await self._backend()
        try:
            if self._tsc is not None:
                await self._tsc.start(warm=True)
        except TscUnavailable as error:
            await self._fall_back(error)

    async def read(self, path: Path) -> Script:
        """Reads a script and its imports. Raises InvalidScript if a file is missing or cannot be imported."""
        files = await read_files(path, self.outlines)
        name = next(iter(files))
        return Script(files.pop(name), name, files)

    async def prepare(
        self, script: Script, declarations: str | None, *, strict: bool = False
    ) -> PreparedScript:
        """Returns the code to run. The script is type-checked unless `declarations` is None.

        `declarations` are the types of the module "toolscript". Unless `strict`, only the use of tools is
        checked strictly (see leniency.py). A Markdown fence around the whole script is removed. Raises
        InvalidScript.
        """
        script = msgspec.structs.replace(script, text=without_fence(script.text))
        try:
            key = _cache_key(script, declarations, strict)
        except UnicodeEncodeError:
            raise InvalidScript([cannot_check(script.name, "it is not UTF-8 text.")]) from None
        cached = self._prepared.get(key)
        if cached is not None:
            self._prepared.move_to_end(key)
            return cached
        try:
            prepared = await self._prepare(script, declarations, strict)
        except InvalidScript as error:
            raise explain_language(script.text, error) from None
        self._cache(key, prepared, len(script.text))
        return prepared

    async def _prepare(self, script: Script, declarations: str | None, strict: bool) -> PreparedScript:
        prepared = PreparedScript(script.text)
        if may_return(script.text) or may_be_function(script.text):
            outlines = await self.outlines({script.name: script.text})
            prepared = rewrite(script.name, script.text, outlines[script.name])
        if declarations is not None:
            problems = await self._check(script, prepared, declarations, strict)
            if problems:
                raise InvalidScript(problems)
        return prepared

    async def check(
        self,
        script: str,
        declarations: str,
        *,
        name: str = SCRIPT,
        files: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> list[ScriptProblem]:
        """Checks a script without running it. Returns the problems."""
        try:
            await self.prepare(Script(script, name, dict(files or {})), declarations, strict=strict)
        except InvalidScript as error:
            return error.problems
        return []

    async def outlines(self, files: Mapping[str, str]) -> dict[str, Outline]:
        """Parses files. Raises InvalidScript for syntax errors."""
        if not files:
            return {}
        try:
            return await (await self._backend()).outlines(files)
        except TscUnavailable as error:
            await self._fall_back(error)
            return await self._fallback.outlines(files)

    async def close(self) -> None:
        """Ends the idle compiler processes at once, and busy processes when they are done."""
        tsc, self._tsc = self._tsc, None
        if tsc is not None:
            await tsc.close()

    async def _check(
        self, script: Script, prepared: PreparedScript, declarations: str, strict: bool
    ) -> list[ScriptProblem]:
        files = {script.name: prepared.text, **script.files}
        problems = await self._problems(files, declarations)
        if problems and not strict:
            problems = await self._without_allowed(problems, files)
        explained = [
            explain(
                _at_original_position(problem, prepared) if problem.file == script.name else problem,
                declarations,
            )
            for problem in problems
        ]
        order = {name: number for number, name in enumerate(files)}
        return sorted(explained, key=lambda problem: (order[problem.file], problem.line, problem.column))

    async def _problems(self, files: Mapping[str, str], declarations: str) -> list[ScriptProblem]:
        try:
            return await (await self._backend()).check(files, declarations)
        except InvalidScript as error:
            return error.problems
        except TscUnavailable as error:
            await self._fall_back(error)
            return await self._fallback.check(files, declarations)

    async def _without_allowed(
        self, problems: list[ScriptProblem], files: Mapping[str, str]
    ) -> list[ScriptProblem]:
        """Removes the problems that a lenient check allows."""
        check = LenientCheck(files)
        kept: list[ScriptProblem] = []
        allowed = set()
        for number, problem in enumerate(problems):
            if number % 100 == 99:
                # Let other tasks run, because checking a thousand problems takes long.
                await asyncio.sleep(0)
            if not check.is_allowed(problem):
                kept.append(problem)
                if check.is_allowed_outside_tools(problem):
                    allowed.add(location(problem))
        if allowed:
            # Allow only problems that remain if all tools have the type `any`. The other problems are about
            # tools.
            allowed.intersection_update(map(location, await self._problems(files, ANY_TOOLS)))
        return [problem for problem in kept if location(problem) not in allowed]

    def _cache(self, key: bytes, prepared: PreparedScript, chars: int) -> None:
        if chars <= _MAX_CACHED_CHARS:
            self._prepared[key] = prepared
            while len(self._prepared) > _MAX_CACHED:
                self._prepared.popitem(last=False)

    # --- backends ---

    async def _backend(self) -> CheckBackend:
        async with self._backend_lock:
            if self._tsc is None and time.monotonic() >= self._retry_at:
                self._tsc = await self._start_tsc()
        return self._tsc or self._fallback

    async def _start_tsc(self) -> TscPool | None:
        try:
            tsc = TscPool(await self._toolchain.compiler(self._on_message), self._jail, self._seconds)
            await tsc.start()
            return tsc
        except (PackageNotFound, TscUnavailable, OSError) as error:
            await self._fall_back(error)
            return None

    async def _fall_back(self, error: Exception) -> None:
        """Switches to `deno check` for RETRY_SECONDS. Warns only the first time."""
        reason = (
            error.message
            if isinstance(error, PackageNotFound)
            else f"TypeScript {COMPILER_VERSION} fails: {error}."
        )
        if self._retry_at == 0:
            warn = self._on_message or logger.warning
            warn(f"{reason} Scripts are checked with `deno check` meanwhile, which takes seconds.")
        self._retry_at = time.monotonic() + RETRY_SECONDS
        await self.close()


def _cache_key(script: Script, declarations: str | None, strict: bool) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((script, declarations, strict))).digest()


def _at_original_position(problem: ScriptProblem, prepared: PreparedScript) -> ScriptProblem:
    """Maps a problem in the rewritten code to its position in the original script."""
    if not prepared.returns or not problem.line:
        return problem
    start = prepared.original_index(problem.line, problem.column)
    end = start + problem.length
    moved = problem_at(problem.file, prepared.original, start, end, problem.message, code=problem.code)
    return msgspec.structs.replace(moved, signature=problem.signature)
